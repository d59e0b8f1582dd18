// One line at the foot of the page when the server does not respond or rejects a request.

import { byId, el, fill } from "../../shared/dom";

const SILENT =
  "The server does not respond. It may have been stopped: " +
  "start gpusight serve again and open the address that it prints.";

/** Whether a call was taken back by the page itself, which is no fault. */
export function takenBack(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Whether nobody answered at all. */
export function unanswered(error: unknown): boolean {
  return error instanceof TypeError;
}

/** Show what went wrong; the reader may put it away. */
export function showFault(error: unknown): void {
  if (takenBack(error)) return;
  const text = unanswered(error) ? SILENT : error instanceof Error ? error.message : String(error);
  const away = el("button", { type: "button", class: "text-button", on: { click: hideFault } }, "Dismiss");
  const host = byId("fault");
  fill(host, el("p", {}, text), away);
  host.hidden = false;
}

/** Take the line away, as when the server responds again. */
export function hideFault(): void {
  byId("fault").hidden = true;
}
