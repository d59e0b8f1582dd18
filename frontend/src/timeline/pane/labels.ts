// Names of groups, their sections and tracks as real text next to the canvas: to be found, read out and folded.

import { el } from "../../shared/dom";
import { formatCount } from "../../shared/format";
import type { Layout, Row } from "./layout";

/** The column of names; notifies when one is to be collapsed or expanded. */
export class Labels {
  readonly element = el("ul", { class: "pane-labels", "aria-label": "Tracks" });

  constructor(private readonly toggle: (key: string) => void) {
    this.element.addEventListener("click", (event) => {
      const button = event.target instanceof Element ? event.target.closest("button") : null;
      if (button?.dataset["row"] !== undefined) this.toggle(button.dataset["row"]);
    });
  }

  /** Show these rows; what has the keyboard keeps it. */
  show(layout: Layout): void {
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && this.element.contains(active) ? active.dataset["row"] : undefined;
    this.element.replaceChildren(...groupsOf(layout.rows).map(groupItem));
    if (focused !== undefined) this.button(focused)?.focus({ preventScroll: true });
  }

  private button(key: string): HTMLElement | undefined {
    return [...this.element.querySelectorAll("button")].find((button) => button.dataset["row"] === key);
  }
}

/** Rows of each group, its heading first. */
function groupsOf(rows: readonly Row[]): Row[][] {
  const made: Row[][] = [];
  for (const row of rows) {
    if (row.kind === "group") made.push([]);
    made.at(-1)?.push(row);
  }
  return made;
}

/** A heading stays in sight while its rows are scrolled by. */
function groupItem([heading, ...rows]: Row[]): HTMLElement {
  if (heading === undefined) throw new Error("A group without a heading");
  const list = rows.length ? el("ul", {}, ...rows.map((row) => el("li", {}, rowButton(row)))) : null;
  return el("li", { class: "pane-group" }, rowButton(heading), list);
}

function rowButton(row: Row): HTMLElement {
  const { long, brief } = countsOf(row);
  return el(
    "button",
    {
      type: "button",
      class: `pane-row pane-row-${row.kind}`,
      "aria-expanded": String(!row.folded),
      title: long ? `${row.name}: ${long}` : row.name,
      data: { row: row.key, depth: row.parents.length, testid: `pane-row-${row.kind}` },
      style: { height: `${row.height}px` },
    },
    el("span", { class: "pane-chevron", "aria-hidden": "true" }),
    el("span", { class: "pane-name" }, row.name),
    brief && el("span", { class: "pane-count", "aria-hidden": "true" }, brief),
  );
}

/** How much a row holds: events of a track, tracks of a heading that hides them. */
function countsOf(row: Row): { long: string; brief: string } {
  if (row.kind !== "track") {
    const long = row.tracks === 1 ? "1 track" : `${formatCount(row.tracks)} tracks`;
    return { long, brief: row.folded ? long : "" };
  }
  const count = row.track?.events ?? 0;
  if (row.track === null || row.track.kind === "ledger") return { long: "", brief: "" };
  if (!row.track.series) return { long: `${formatCount(count)} events`, brief: short(count) };
  const zeros = row.track.high === 0; // of samples, not their number is of interest but their values
  return { long: `${formatCount(count)} samples${zeros ? ", all zero" : ""}`, brief: zeros ? "all 0" : "" };
}

/** A count in few letters: `1.2 M`. */
function short(count: number): string {
  const [factor, unit] = count >= 999_500 ? [1e6, " M"] : count >= 9_995 ? [1e3, " k"] : [1, ""];
  const scaled = count / factor;
  return `${scaled.toFixed(factor > 1 && scaled < 9.95 ? 1 : 0)}${unit}`;
}
