// Times by what they went to: a stacked bar, and a table whose rows are bars themselves.

import { el } from "../../shared/dom";
import { formatShare, formatTime } from "../../shared/format";
import type { Overview } from "../types";
import { tint } from "./colors";

type Palette = Overview["palette"];

/** One row: a color's key, what to call it, its time and its part of the whole. */
export interface Bar {
  readonly key: string;
  readonly name: string;
  readonly ns: number;
  readonly share: number | null;
  /** Such as how many events; shown when pointed at. */
  readonly more?: string;
}

/** The whole as one bar; the table below it has the same in words. */
export function stacked(bars: readonly Bar[], palette: Palette): HTMLElement {
  const parts = bars.map((bar) => {
    const style = { ...tint(palette, bar.key), "flex-grow": String(Math.max(bar.share ?? 0, 0)) };
    return el("span", { class: "tint", title: `${bar.key}: ${formatTime(bar.ns)}, ${formatShare(bar.share)}`, style });
  });
  return el("div", { class: "stacked", "aria-hidden": "true" }, ...parts);
}

/** A row of a table of times. */
export function barRow(bar: Bar, palette: Palette): HTMLTableRowElement {
  const width = { ...tint(palette, bar.key), width: `${Math.min(100, Math.max(0, (bar.share ?? 0) * 100))}%` };
  return el(
    "tr",
    { class: "bar-row", data: { key: bar.key }, title: bar.more ?? null },
    el(
      "th",
      { scope: "row" },
      el("span", { class: "bar tint", style: width, "aria-hidden": "true" }),
      el("span", { class: "swatch tint", style: tint(palette, bar.key), "aria-hidden": "true" }),
      el("span", { class: "bar-name" }, bar.name),
    ),
    el("td", { class: "number", data: { ns: bar.ns } }, formatTime(bar.ns)),
    el("td", { class: "number share" }, formatShare(bar.share)),
  );
}

/** What to call a GPU; names that already have its number stay as they are. */
export function deviceTitle({ device, name }: { readonly device: number; readonly name: string }): string {
  if (name.startsWith(`GPU ${device}`)) return name;
  return name ? `GPU ${device} · ${name}` : `GPU ${device}`;
}

/** The head of a table. */
export function columnHeads(...names: readonly string[]): HTMLTableSectionElement {
  return el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name))));
}
