// What the person must know: failures, a question before deleting, a page that has become old.

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

// A stream was lost: htmx tries again by itself, and goes on from the last event.
document.addEventListener("htmx:sse:error", () => {
  document.getElementById("offline").textContent = "The connection to Pagewell is lost. Trying again …";
});
document.addEventListener("htmx:sse:after:connection", () => {
  document.getElementById("offline").textContent = "";
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

// Events of the tab's own stream: it missed too much (the server was restarted), or its chat was deleted elsewhere.
document.addEventListener("stale", () => location.reload());
document.addEventListener("gone", () => location.assign("/"));
