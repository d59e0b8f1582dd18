// Details of the selected event, and its related events.

import { smallButton } from "../../shared/buttons";
import { el, fill } from "../../shared/dom";
import { formatTime } from "../../shared/format";
import { showFault, takenBack } from "../app/faults";
import type { EventDetails, Spot } from "../types";
import { copyButton } from "./copying";
import { type Actions, type PanelView, type Subject, working } from "./view";

/** The tab of the selected event. */
export class SelectionPanel implements PanelView {
  readonly id = "selection";
  readonly title = "Selection";
  readonly element = el("div", { class: "selection" });
  private shown = "";
  private request: AbortController | null = null;

  constructor(private readonly actions: Actions) {}

  update({ capture, selection }: Subject): void {
    const wanted = selection ? `${capture.id}/${selection.table}/${selection.row}` : "none";
    if (wanted === this.shown) return;
    this.shown = wanted;
    this.request?.abort();
    if (selection) void this.ask(capture.id, selection);
    else fill(this.element, el("p", { class: "headline" }, "Nothing selected."), teaching());
  }

  private async ask(id: number, spot: Spot): Promise<void> {
    const request = new AbortController();
    this.request = request;
    fill(this.element, this.heading("", spot.name, spot), working("loading details"));
    try {
      const details = await this.actions.client.event(id, spot.table, spot.row, request.signal);
      if (!request.signal.aborted) this.draw(details);
    } catch (error) {
      if (takenBack(error)) return;
      this.shown = "";
      showFault(error);
    }
  }

  private draw(details: EventDetails): void {
    this.actions.link(details.links.map((link) => link.spot));
    const [first, ...rest] = details.sections.map(section); // when and how long comes first
    fill(
      this.element,
      this.heading(details.kind, details.title, details.spot),
      first,
      details.links.length > 0 && this.links(details),
      ...rest,
    );
  }

  private heading(kind: string, title: string, spot: Spot): HTMLElement {
    return el(
      "header",
      { class: "event-head" },
      kind && el("p", { class: "kind" }, kind),
      // Names may be long enough to scroll, by keyboard too.
      el("div", { class: "event-title", role: "group", "aria-label": "Name", tabindex: 0 }, el("h3", {}, title)),
      el(
        "div",
        { class: "buttons" },
        smallButton("Zoom to event", () => this.actions.jump(spot, spot, title), "target"),
        copyButton("Copy name", () => title),
        copyButton("Copy link", () => location.href, "link"),
      ),
    );
  }

  private links(details: EventDetails): HTMLElement {
    const items = details.links.map(({ relation, spot }) => el("li", {}, this.link(relation, spot)));
    return el("section", { class: "block" }, el("h4", {}, "Related events"), el("ul", { class: "links" }, ...items));
  }

  private link(relation: string, spot: Spot): HTMLElement {
    return el(
      "button",
      { type: "button", class: "link", on: { click: () => this.actions.select(spot) } },
      el("span", { class: "relation" }, relation),
      el("span", { class: "link-name" }, spot.name),
      el("span", { class: "number" }, formatTime(spot.end_ns - spot.start_ns)),
    );
  }
}

/** How to use this tab. */
function teaching(): HTMLElement {
  const ways = [
    "Click an event for its details: launch, operator, range, Python line and counters, where the capture has them.",
    "Press / to search for a name, and Enter for its next occurrence.",
    "With an event selected: . and , go to the next and previous event, F zooms to it, M selects its time.",
  ];
  return el("ul", { class: "teaching" }, ...ways.map((way) => el("li", {}, way)));
}

function section({ title, rows }: EventDetails["sections"][number]): HTMLElement {
  const facts = rows.map(({ name, value, meaning }) =>
    el("tr", { title: meaning || null }, el("th", { scope: "row" }, name), el("td", {}, value)));
  const table = el("table", { class: "facts" }, el("tbody", {}, ...facts));
  return el("section", { class: "block" }, el("h4", {}, title), table);
}
