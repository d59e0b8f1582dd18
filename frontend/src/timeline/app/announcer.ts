// What happened, for those who do not see it: a jump, a count of names found.

import { byId } from "../../shared/dom";

const AGAIN = "\u00a0";

/** Announce a line to screen readers; the same line twice is announced twice. */
export function announce(text: string): void {
  const live = byId("live");
  live.textContent = live.textContent === text ? text + AGAIN : text;
}
