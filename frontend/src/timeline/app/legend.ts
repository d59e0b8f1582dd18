// What the colors of the timeline mean.

import { el } from "../../shared/dom";
import { tint } from "../panels/colors";
import type { Overview } from "../types";

type Palette = Overview["palette"];

const GROUPS: readonly (readonly [group: string, title: string])[] = [
  ["compute", "Compute"], ["copy", "Copies"], ["communication", "Communication"],
  ["idle", "Idle"], ["api", "API calls"],
];

const REST =
  "Ranges and operators get one of eight colors by name. Where a bar does not fill its track, its height is the share " +
  "of that time that is busy.";

/** All colors with a meaning, by what they belong to. */
export function legend(palette: Palette): HTMLElement {
  const rows = GROUPS.flatMap(([group, title]) => {
    const keys = Object.keys(palette).filter((key) => key.split("/", 1)[0] === group);
    return keys.length ? [el("dt", {}, title), el("dd", {}, ...keys.map((key) => entry(palette, key)))] : [];
  });
  return el("section", { class: "legend" }, el("h3", {}, "Colors"), el("dl", {}, ...rows), el("p", { class: "muted" }, REST));
}

function entry(palette: Palette, key: string): HTMLElement {
  const swatch = el("span", { class: "swatch tint", style: tint(palette, key), "aria-hidden": "true" });
  return el("span", {}, swatch, key.slice(key.indexOf("/") + 1));
}
