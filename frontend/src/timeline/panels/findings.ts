// Findings as a plan: in the order to fix them, each with what it saves and where it happens.

import { iconButton, smallButton } from "../../shared/buttons";
import { el, fill, prose } from "../../shared/dom";
import { capital, formatShare, formatTime } from "../../shared/format";
import { icon } from "../../shared/icons";
import type { FindingInfo, Findings } from "../types";
import { copyButton } from "./copying";
import { type Actions, failure, hint, type PanelView, type Subject, unread, working } from "./view";

type Place = FindingInfo["places"][number];

/** Locations that are shown at first. */
const SHOWN_AT_FIRST = 4;
const WORKING = "diagnosing";

/** The tab of the findings. */
export class FindingsPanel implements PanelView {
  readonly id = "findings";
  readonly title = "Findings";
  readonly element = el("div", { class: "findings" });
  private drawn: Findings | null = null;

  constructor(private readonly actions: Actions) {}

  update({ capture }: Subject): void {
    const answer = capture.findings;
    if (answer && answer === this.drawn) return;
    this.drawn = answer;
    fill(this.element, ...(answer ? this.content(answer) : [unread(capture)]));
  }

  private content(answer: Findings): HTMLElement[] {
    if (answer.state === "computing") return [working(answer.message || WORKING)];
    if (answer.state === "failed") return [failure(answer.message)];
    const unit = answer.steps > 0 ? "/step" : "";
    const item = (finding: FindingInfo, index: number, numbered = false): HTMLElement =>
      el("li", {}, this.item(finding, index, unit, numbered));
    const plan = answer.findings.map((finding, index) => item(finding, index, true));
    const beside = answer.beside.map((note, index) => el("li", {}, this.note(note, plan.length + index)));
    const kernels = answer.kernels.map((kernel, index) => item(kernel, plan.length + beside.length + index));
    return [
      ...headline(answer),
      plan.length ? el("ol", { class: "finding-list" }, ...plan) : hint("No significant bottleneck found."),
      ...answer.needs.map((text) => el("p", { class: "plan-note muted" }, capital(text))),
      ...(beside.length ? [el("ul", { class: "note-list" }, ...beside)] : []),
      ...(kernels.length ? [kernelsTitle(), el("ol", { class: "finding-list kernel-list" }, ...kernels)] : []),
    ];
  }

  private item(finding: FindingInfo, index: number, unit: string, numbered: boolean): HTMLElement {
    const [title, body] = this.folded(finding, index, index === 0);
    if (numbered) title.prepend(`${index + 1}. `);
    return el(
      "article",
      { class: "finding", data: { rule: finding.rule } },
      el("div", { class: "finding-head" }, el("h3", {}, title), this.show(finding)),
      gain(finding, unit),
      body,
    );
  }

  /** A finding below the plan: no fix, so it has no number and no saving. */
  private note(finding: FindingInfo, index: number): HTMLElement {
    const [title, body] = this.folded(finding, index, false);
    const head = el("div", { class: "finding-head" }, el("h3", {}, title), this.show(finding));
    return el("article", { class: "plan-note", data: { rule: finding.rule } }, head, body);
  }

  /** The title of a finding, and what it opens. */
  private folded(finding: FindingInfo, index: number, open: boolean): [HTMLElement, HTMLElement] {
    const body = el("div", { class: "finding-body", id: `finding-${index}`, hidden: !open }, ...this.body(finding));
    const title = el(
      "button",
      { type: "button", class: "finding-title", "aria-expanded": String(open), "aria-controls": body.id },
      prose(finding.title),
    );
    title.addEventListener("click", () => {
      body.hidden = !body.hidden;
      title.setAttribute("aria-expanded", String(!body.hidden));
    });
    return [title, body];
  }

  /** The first place, one press away. */
  private show(finding: FindingInfo): HTMLElement | null {
    const first = finding.places[0];
    if (!first) return null;
    const label = `Show in the timeline: ${first.label}`;
    return iconButton(label, "target", () => this.go(first), { class: "icon-button show-place" });
  }

  private body(finding: FindingInfo): HTMLElement[] {
    return [
      ...(finding.saving ? [el("p", { class: "saving" }, `${capital(finding.saving)}.`)] : []),
      el("h4", {}, "Where"),
      this.places(finding.places),
      el("h4", {}, "Evidence"),
      evidence(finding),
      el("h4", {}, "Why"),
      el("p", {}, prose(finding.why)),
      el("h4", {}, "Fix"),
      el("p", {}, prose(finding.fix)),
      ...(finding.code ? [code(finding.code)] : []),
    ];
  }

  private places(places: readonly Place[]): HTMLElement {
    const items = places.map((place, index) => el("li", { hidden: index >= SHOWN_AT_FIRST }, this.place(place)));
    const list = el("ul", { class: "places" }, ...items);
    if (items.length > SHOWN_AT_FIRST) {
      const all = smallButton(`All ${items.length} locations`, () => {
        items.forEach((item) => (item.hidden = false));
        items[SHOWN_AT_FIRST]?.querySelector("button")?.focus();
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

/** The step time, and what all fixes save. */
function headline(answer: Findings): HTMLElement[] {
  const steps = answer.steps === 1 ? "1 step" : `${answer.steps} steps`;
  const about = answer.steps > 0 ? `/step, ${steps} evaluated` : ", no steps found";
  const plan = el("p", { class: "plan-total", hidden: !answer.plan, data: { ns: answer.predicted_step_ns ?? "" } }, capital(answer.plan));
  const times = el("p", { class: "times muted", hidden: !answer.about }, answer.about);
  return [el("p", { class: "headline" }, el("b", { class: "big" }, formatTime(answer.step_ns, 3)), about), times, plan];
}

function kernelsTitle(): HTMLElement {
  return el("div", { class: "kernel-fixes" },
    el("h3", {}, "Kernel fixes"),
    el("p", { class: "muted" }, "GPU time saved per kernel; not part of the plan."));
}

/** `Saves 26.2 ms/step`, and the step time with this fix and those above. */
function gain(finding: FindingInfo, unit: string): HTMLElement {
  const { saved_ns_per_step: ns, share, predicted_step_ns: then, speedup } = finding;
  const width = { width: `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%` };
  const after = then === null ? speedup : `→ ${formatTime(then, 3)}${unit} (${speedup})`;
  return el(
    "div",
    { class: "gain" },
    el("p", { class: "gain-numbers" },
      ns === null
        ? el("span", { class: "muted" }, "No time estimate")
        : el("b", { data: { ns } }, ns < 0.5 ? "Saves nothing more" : `Saves ${formatTime(ns, 3)}${unit}`),
      after && el("span", { class: "gain-after", data: { then: then ?? "" } }, after)),
    share !== null && el("div", { class: "gain-bar", title: formatShare(share), "aria-hidden": "true" }, el("span", { style: width })),
    el("p", { class: "gain-about" },
      finding.effort && el("span", {}, `effort: ${finding.effort}`),
      el("span", { class: `confidence ${finding.confidence}` }, `${finding.confidence} confidence`)),
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
    el("figcaption", {}, el("span", {}, "Code"), copyButton("Copy code", () => text)),
    el("pre", { tabindex: 0, "aria-label": "Code" }, el("code", {}, text)),
  );
}
