// What the person must know: failures, a question before deleting.

function notice(text) {
  const line = Object.assign(document.createElement("p"), { textContent: text });
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), 8000);
}

document.addEventListener("htmx:response:error", (event) => {
  const { text, response } = event.detail.ctx;
  const isPlain = response.headers.get("content-type")?.startsWith("text/plain");
  notice(isPlain && text ? text : `The server answered with an error (${response.status}).`);
});

document.addEventListener("htmx:error", (event) => {
  if (event.detail.ctx?.request.method !== "GET") notice("The server cannot be reached. Is Pagewell still running?");
});

document.addEventListener("htmx:confirm", (event) => {
  const { ctx, issueRequest, dropRequest } = event.detail;
  const dialog = document.getElementById("confirm");
  event.preventDefault();
  dialog.querySelector("#confirm-text").textContent = ctx.confirm;
  dialog.returnValue = "";
  dialog.addEventListener("close", () => (dialog.returnValue ? issueRequest() : dropRequest()), { once: true });
  dialog.showModal();
});
