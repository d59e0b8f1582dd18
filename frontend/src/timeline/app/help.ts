// The keys of the page and what its colors mean, in a dialogue.

import { iconButton } from "../../shared/buttons";
import { byId, el, fill } from "../../shared/dom";
import type { Overview } from "../types";
import { legend } from "./legend";

type Keys = readonly (readonly [keys: readonly string[], meaning: string])[];

const MOVE: Keys = [
  [["W", "S", "+", "−"], "Zoom in and out, at the pointer"],
  [["A", "D", "←", "→"], "Pan left and right"],
  [["↑", "↓"], "Scroll through the tracks"],
  [["0", "Home"], "Show the whole capture"],
  [["F", "double click"], "Zoom to the event; on the ruler, to the step"],
  [["[", "]"], "Previous and next step"],
  [["Ctrl + wheel", "pinch"], "Zoom at the pointer; on the ruler without Ctrl"],
  [["Shift + wheel", "drag"], "Pan"],
];
const LOOK: Keys = [
  [["click"], "Select an event; click a track name to collapse it"],
  [[",", "."], "Previous and next event of the track"],
  [["Shift + drag", "drag on the ruler"], "Select a range and measure it"],
  [["M"], "Select the time of the selected event"],
  [["Esc"], "Clear search and selection"],
];
const PAGE: Keys = [
  [["/"], "Search"],
  [["Enter", "Shift + Enter"], "Next and previous search result"],
  [["P"], "Show or hide the panel"],
  [["drag the edges"], "Resize track names or panel"],
  [["?"], "This list"],
];

const colors = el("div", {});

/** Fill the dialogue once; `openHelp` shows it. */
export function buildHelp(): void {
  const dialog = byId<HTMLDialogElement>("help");
  const close = iconButton("Close", "close", () => dialog.close());
  dialog.append(
    el("header", {}, el("h2", { id: "help-title" }, "Keys and colors"), close),
    el("div", { class: "key-lists" }, keyList("Move", MOVE), keyList("Look", LOOK), keyList("Page", PAGE)),
    colors,
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // outside the text
  });
}

/** Show it, with the colors that hold for what is served. */
export function openHelp(palette: Overview["palette"]): void {
  fill(colors, legend(palette));
  byId<HTMLDialogElement>("help").showModal();
}

function keyList(title: string, keys: Keys): HTMLElement {
  const rows = keys.map(([names, meaning]) => {
    const shown = names.flatMap((name) => [el("kbd", {}, name), " "]);
    return el("tr", {}, el("th", { scope: "row" }, ...shown), el("td", {}, meaning));
  });
  return el("section", {}, el("h3", {}, title), el("table", {}, el("tbody", {}, ...rows)));
}
