// The messages: keeps to the end while one reads there, and copies.

const NEAR = 48;
let follows = true;

const scroller = () => document.getElementById("scroller");
const distance = () => scroller().scrollHeight - scroller().scrollTop - scroller().clientHeight;

function toEnd() {
  scroller().scrollTop = scroller().scrollHeight;
}

function note() {
  follows = distance() < NEAR;
  document.getElementById("latest").hidden = follows;
}

const growth = new ResizeObserver(() => (follows ? toEnd() : note()));

function watch() {
  growth.disconnect();
  const messages = document.getElementById("messages");
  if (!messages) return;
  follows = true;
  growth.observe(messages);
  growth.observe(scroller());
  scroller().addEventListener("scroll", note, { passive: true });
  toEnd();
}

document.addEventListener("DOMContentLoaded", watch);
document.addEventListener("htmx:after:swap", (event) => {
  if (event.detail.ctx.sourceElement?.id === "chat") watch();
});
document.addEventListener("htmx:after:request", (event) => {
  if (event.detail.ctx.sourceElement.id !== "composer" || !document.getElementById("messages")) return;
  follows = true;
  toEnd();
});

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers give the clipboard to secure pages only; on a home network this one is not.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const label = button.matches(".copy") && button.textContent;
  button.classList.add("done");
  if (label) button.textContent = "Copied";
  setTimeout(() => {
    button.classList.remove("done");
    if (label) button.textContent = "Copy";
  }, 1500);
}

document.addEventListener("click", async (event) => {
  if (event.target.closest("#latest")) {
    follows = true;
    toEnd();
  }
  const code = event.target.closest(".code .copy");
  if (code) copy(code.closest(".code").querySelector("code").textContent, code);
  const message = event.target.closest(".copy-message");
  if (message) copy(await (await fetch(message.dataset.text)).text(), message);
});
