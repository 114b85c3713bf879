// The message box: keys, its height, and drafts that outlive a page.

const box = () => document.getElementById("composer-text");
const draftKey = () => `draft:${location.pathname}`;

function fit() {
  if (CSS.supports("field-sizing", "content")) return;
  box().style.height = "auto";
  box().style.height = `${box().scrollHeight}px`;
}

function restoreDraft() {
  if (!box()) return;
  box().value ||= sessionStorage.getItem(draftKey()) ?? "";
  fit();
}

document.addEventListener("input", (event) => {
  if (event.target !== box()) return;
  sessionStorage.setItem(draftKey(), box().value);
  fit();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && event.target === box() && !event.shiftKey) {
    event.preventDefault();
    // While an answer is written there is no button to send with: the draft stays.
    const send = document.querySelector("#composer-action .send");
    if (send && box().value.trim()) box().form.requestSubmit(send);
  }
  if (event.key === "Escape") {
    const cancel = event.target.closest(".renaming")?.querySelector(".cancel");
    const open = document.querySelector("dialog[open], :popover-open");
    if (cancel) cancel.click();
    else if (!open) document.querySelector("#composer-action .stop")?.click();
  }
});

let sentFrom = "";
document.addEventListener("htmx:before:request", (event) => {
  if (event.detail.ctx.sourceElement.matches("#composer, #welcome button")) sentFrom = draftKey();
});
document.addEventListener("htmx:after:request", (event) => {
  const { sourceElement, response } = event.detail.ctx;
  if (!sourceElement.matches("#composer, #welcome button") || response.status >= 400) return;
  sessionStorage.removeItem(sentFrom);
  box().value = "";
  fit();
});

document.addEventListener("DOMContentLoaded", restoreDraft);
