// How long one has waited, in seconds, so that a large capture does not look like a page that hangs.

import { el } from "../../shared/dom";

const TICK_MS = 500;
/** Shorter waits show no time. */
const SHOWN_FROM_S = 3;

/** Counts from when the page was opened until it is taken off the page; for eyes only, as it says nothing new. */
export function elapsed(): HTMLElement {
  const shown = el("span", { class: "elapsed", "aria-hidden": "true" });
  const timer = setInterval(() => {
    if (!shown.isConnected) return clearInterval(timer);
    const seconds = Math.floor(performance.now() / 1000);
    shown.textContent = seconds >= SHOWN_FROM_S ? ` ${seconds} s` : "";
  }, TICK_MS);
  return shown;
}
