// What holds the program back, most time first, each with where it happens.

import { iconButton, smallButton } from "../../shared/buttons";
import { el, fill, prose } from "../../shared/dom";
import { formatShare, formatTime } from "../../shared/format";
import { icon } from "../../shared/icons";
import type { FindingInfo, Findings } from "../types";
import { copyButton } from "./copying";
import { type Actions, failure, hint, type PanelView, type Subject, unread, working } from "./view";

type Place = FindingInfo["places"][number];

/** Places that are shown at first. */
const FEW = 4;
const LOOKING = "looking for what holds the program back";

/** The tab of the findings. */
export class FindingsPanel implements PanelView {
  readonly id = "findings";
  readonly title = "Findings";
  readonly element = el("div", { class: "findings" });
  private drawn: Findings | null = null;

  constructor(private readonly actions: Actions) {}

  update({ capture }: Subject): void {
    const found = capture.findings;
    if (found && found === this.drawn) return;
    this.drawn = found;
    fill(this.element, ...(found ? this.content(found) : [unread(capture)]));
  }

  private content(found: Findings): HTMLElement[] {
    if (found.state === "computing") return [working(found.message || LOOKING)];
    if (found.state === "failed") return [failure(found.message)];
    if (found.findings.length === 0) return [headline(found), hint("Nothing stands out in this capture.")];
    const items = found.findings.map((finding, index) => el("li", {}, this.item(finding, index, found.steps)));
    const gains = found.findings.some((finding) => finding.recoverable_ns_per_step !== null);
    const meaning = el("p", { class: "muted", hidden: !gains }, "Each with the time that mending it gives back.");
    return [headline(found), meaning, el("ol", { class: "finding-list" }, ...items)];
  }

  private item(finding: FindingInfo, index: number, steps: number): HTMLElement {
    const body = el("div", { class: "finding-body", id: `finding-${index}`, hidden: index > 0 }, ...this.body(finding));
    const title = el(
      "button",
      { type: "button", class: "finding-title", "aria-expanded": String(index === 0), "aria-controls": body.id },
      prose(finding.title),
    );
    title.addEventListener("click", () => {
      body.hidden = !body.hidden;
      title.setAttribute("aria-expanded", String(!body.hidden));
    });
    return el(
      "article",
      { class: "finding", data: { rule: finding.rule } },
      el("div", { class: "finding-head" }, el("h3", {}, title), this.show(finding)),
      gain(finding, steps),
      body,
    );
  }

  /** The first place, one press away. */
  private show(finding: FindingInfo): HTMLElement | null {
    const first = finding.places[0];
    if (!first) return null;
    const label = `Show on the timeline: ${first.label}`;
    return iconButton(label, "target", () => this.go(first), { class: "icon-button show-place" });
  }

  private body(finding: FindingInfo): HTMLElement[] {
    return [
      el("h4", {}, "Where"),
      this.places(finding.places),
      el("h4", {}, "What was seen"),
      evidence(finding),
      el("h4", {}, "Why it costs"),
      el("p", {}, prose(finding.why)),
      el("h4", {}, "What to do"),
      el("p", {}, prose(finding.fix)),
      ...(finding.code ? [code(finding.code)] : []),
    ];
  }

  private places(places: readonly Place[]): HTMLElement {
    const items = places.map((place, index) => el("li", { hidden: index >= FEW }, this.place(place)));
    const list = el("ul", { class: "places" }, ...items);
    if (items.length > FEW) {
      const all = smallButton(`All ${items.length} places`, () => {
        items.forEach((item) => (item.hidden = false));
        items[FEW]?.querySelector("button")?.focus();
        all.parentElement?.remove();
      });
      list.append(el("li", {}, all));
    }
    return list;
  }

  private place(place: Place): HTMLElement {
    const button = el("button", { type: "button", class: "place" }, icon("target"), el("span", {}, place.label));
    button.addEventListener("click", () => {
      for (const other of this.element.querySelectorAll(".place[aria-current]")) other.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      this.go(place);
    });
    return button;
  }

  private go(place: Place): void {
    this.actions.jump(place, place.spot, place.label);
  }
}

function headline(found: Findings): HTMLElement {
  const judged = found.steps > 1 ? `${found.steps} judged steps` : "one judged step";
  const length = formatTime(found.step_ns);
  return el(
    "p",
    { class: "headline" },
    el("b", { class: "big" }, length),
    found.steps > 0 ? ` a step, ${judged}` : " were judged; no steps are known",
  );
}

function gain(finding: FindingInfo, steps: number): HTMLElement {
  const { recoverable_ns_per_step: ns, share } = finding;
  const width = { width: `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%` };
  return el(
    "div",
    { class: "gain" },
    el("p", { class: "gain-numbers" },
      ns === null ? el("span", { class: "muted" }, "Gain not known") : el("b", { data: { ns } }, formatTime(ns)),
      ns === null ? null : `${steps > 0 ? "a step" : "in that time"}, ${formatShare(share)}`,
      el("span", { class: `confidence ${finding.confidence}` }, `${finding.confidence} confidence`)),
    share !== null && el("div", { class: "gain-bar", "aria-hidden": "true" }, el("span", { style: width })),
  );
}

function evidence(finding: FindingInfo): HTMLElement {
  const rows = finding.evidence.map(({ value, meaning }) =>
    el("tr", {}, el("th", { scope: "row" }, meaning), el("td", { class: "number" }, value)));
  return el("table", { class: "facts" }, el("tbody", {}, ...rows));
}

function code(text: string): HTMLElement {
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, "To paste"), copyButton("Copy code", () => text)),
    el("pre", { tabindex: 0, "aria-label": "Code to paste" }, el("code", {}, text)),
  );
}
