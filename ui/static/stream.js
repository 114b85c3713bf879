// The tab's one stream: everything that comes up after the page was loaded. Browsers allow six connections to a server,
// for all tabs together, so a tab that nobody looks at holds none; it goes on from the last event when it is shown.

let source = null;
let swaps = Promise.resolve();

function offline(text) {
  document.getElementById("offline").textContent = text;
  document.body.classList.toggle("offline", text !== "");
}

function close() {
  source?.close();
  source = null;
}

function listen() {
  const place = document.getElementById("stream");
  if (!place || document.hidden || source) return;
  source = new EventSource(`${place.dataset.url}after=${encodeURIComponent(place.dataset.after)}`);
  const own = source;
  own.onopen = () => offline("");
  own.onmessage = ({ data, lastEventId }) => {
    swaps = swaps.then(async () => {
      // After a message that was not put in place, the one before it is where the next stream goes on.
      if (own !== source) return;
      await htmx.swap({ text: data, sourceElement: place, target: place, swap: "none swapEmpty:false" });
      if (lastEventId) place.dataset.after = lastEventId;
    });
  };
  // The browser tries again by itself and goes on from the last event, unless the server refused.
  own.onerror = () => {
    offline("The connection to Pagewell is lost. Trying again …");
    if (own.readyState !== EventSource.CLOSED || own !== source) return;
    close();
    setTimeout(listen, 3000);
  };
  // The page has become old (it missed too much, or the server was restarted), or its chat was deleted elsewhere.
  own.addEventListener("stale", () => location.reload());
  own.addEventListener("gone", () => location.assign("/"));
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : listen()));
document.addEventListener("DOMContentLoaded", listen);
document.addEventListener("htmx:after:swap", (event) => {
  if (event.detail.ctx.sourceElement?.id !== "chat") return;
  close();
  listen();
});
