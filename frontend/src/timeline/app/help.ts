// The keys of the page, in a dialogue.

import { iconButton } from "../../shared/buttons";
import { byId, el } from "../../shared/dom";

type Keys = readonly (readonly [keys: readonly string[], meaning: string])[];

const MOVE: Keys = [
  [["W", "S"], "Zoom in and out, at the pointer"],
  [["A", "D"], "Go to earlier and later times"],
  [["0", "Home"], "Show everything"],
  [["F"], "Fit the selected event"],
  [["[", "]"], "Previous and next step"],
  [["Ctrl + wheel", "pinch"], "Zoom at the pointer"],
  [["Shift + wheel", "drag"], "Move in time"],
];
const LOOK: Keys = [
  [["click"], "Select an event"],
  [[",", "."], "Previous and next event of the line"],
  [["Shift + drag", "drag on the ruler"], "Mark a stretch and measure it"],
  [["M"], "Mark the stretch of the selected event"],
  [["Esc"], "Take search, selection and mark back"],
];
const PAGE: Keys = [
  [["/"], "Search"],
  [["Enter", "Shift + Enter"], "Next and previous occurrence of what was searched"],
  [["P"], "Show or hide the panel"],
  [["?"], "This list"],
];

/** Fill the dialogue once; `openHelp` shows it. */
export function buildHelp(): void {
  const dialog = byId<HTMLDialogElement>("help");
  const close = iconButton("Close", "close", () => dialog.close());
  dialog.append(
    el("header", {}, el("h2", { id: "help-title" }, "Keys"), close),
    el("div", { class: "key-lists" }, keyList("Move", MOVE), keyList("Look", LOOK), keyList("Page", PAGE)),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
}

export function openHelp(): void {
  byId<HTMLDialogElement>("help").showModal();
}

function keyList(title: string, keys: Keys): HTMLElement {
  const rows = keys.map(([names, meaning]) => {
    const shown = names.flatMap((name) => [el("kbd", {}, name), " "]);
    return el("tr", {}, el("th", { scope: "row" }, ...shown), el("td", {}, meaning));
  });
  return el("section", {}, el("h3", {}, title), el("table", {}, el("tbody", {}, ...rows)));
}
