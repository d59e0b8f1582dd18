// The first two captures side by side in numbers: as of `gpusight compare`.

import { el, fill, prose } from "../../shared/dom";
import { capital } from "../../shared/format";
import type { Capture } from "../app/captures";
import { poll } from "../app/polling";
import type { CompareInfo } from "../types";
import { columnHeads } from "./bars";
import { type Actions, failure, hint, type PanelView, working } from "./view";

/** The tab of the comparison; loaded when it is first opened. */
export class ComparisonPanel implements PanelView {
  readonly id = "comparison";
  readonly title = "Compare";
  readonly element = el("div", { class: "comparison" });
  private requested = false;

  /** `ready` gives the captures whose timelines are there; the first two are compared. */
  constructor(private readonly actions: Actions, private readonly ready: () => readonly Capture[]) {}

  update(): void {
    if (this.requested) return;
    this.requested = true;
    fill(this.element, working("comparing the captures"));
    void poll(
      () => this.actions.client.compare(),
      (answer) => fill(this.element, ...this.content(answer)),
      (answer) => answer.state !== "computing",
    );
  }

  private content(answer: CompareInfo): HTMLElement[] {
    if (answer.state === "computing") return [working(answer.message || "comparing the captures")];
    if (answer.state === "failed") return [failure(answer.message)];
    if (answer.state === "none") return [hint(capital(answer.message || "there is nothing to compare"))];
    const [before, after] = this.ready();
    const sides = el("p", { class: "muted" }, `From ${before?.name ?? "the first"} to ${after?.name ?? "the second"}`);
    const why = answer.explanation.map((line, index) =>
      el("p", { class: index ? "" : "verdict-line" }, prose(capital(line))));
    return [el("div", { class: "explanation" }, sides, ...why), metrics(answer), notes(answer)];
  }
}

function metrics(answer: CompareInfo): HTMLElement {
  const rows = answer.metrics.map((metric) =>
    el(
      "tr",
      { data: { verdict: metric.verdict } },
      el("th", { scope: "row" }, metric.name),
      el("td", { class: "number" }, metric.before),
      el("td", { class: "number" }, metric.after),
      el("td", { class: "number change" }, metric.change, el("span", { class: "verdict" }, metric.verdict)),
    ));
  const head = columnHeads("Metric", "Before", "After", "Change");
  return el("table", { class: "metrics" }, head, el("tbody", {}, ...rows));
}

function notes(answer: CompareInfo): HTMLElement {
  return el("ul", { class: "note-list" }, ...answer.notes.map((note) => el("li", {}, prose(capital(note)))));
}
