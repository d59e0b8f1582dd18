// Which part of the page a key is meant for.

const WIDGET_KEYS = new Set([
  "Enter", " ", "Tab", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown",
]);
const WIDGETS = "#panel, .toolbar, .slot-head, button";

/** What keys do outside of the timeline. */
export interface PageKeys {
  search(): void;
  help(): void;
  panel(): void;
  /** Clear search, selection or mark; returns whether there was one. */
  escape(): boolean;
  /** Give a key to the timeline; returns whether it had a meaning there. */
  timeline(event: KeyboardEvent): boolean;
}

/** Listen on the whole page, so that the timeline's keys work wherever the focus is. */
export function listenForKeys(keys: PageKeys): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (handle(keys, event)) event.preventDefault();
  });
}

function handle(keys: PageKeys, event: KeyboardEvent): boolean {
  if (event.key === "/") keys.search();
  else if (event.key === "?") keys.help();
  else if (event.key === "p" || event.key === "P") keys.panel();
  else if (event.key === "Escape" && keys.escape()) return true;
  else if (belongsToWidget(event)) return false;
  else return keys.timeline(event);
  return true;
}

/** Arrows on a tab, Enter on a button and so on are that element's own. */
function belongsToWidget(event: KeyboardEvent): boolean {
  const target = event.target instanceof Element ? event.target : null;
  return WIDGET_KEYS.has(event.key) && target !== null && target.closest(WIDGETS) !== null;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable=true]") !== null;
}
