// One place for a timeline on the page: a capture being read, its pane, or why it could not be read.

import { el, fill } from "../../shared/dom";
import { capital } from "../../shared/format";
import type { Client } from "../client";
import { createPane } from "../pane";
import type { Overview, Pane, Spot, TimeRange } from "../types";
import type { Place } from "./address";
import type { Capture } from "./captures";
import { elapsed } from "./elapsed";

/** Events of a slot that the page handles. */
export interface SlotEvents {
  /** It was clicked into or got the focus. */
  active(slot: Slot): void;
  /** Its pane shows another time range. */
  view(slot: Slot, range: TimeRange): void;
  /** An event was selected by hand, or the selection was taken back. */
  select(slot: Slot): void;
  /** A range was marked by hand, or the mark was cleared. */
  mark(slot: Slot): void;
}

/** Holds a capture and what is selected and marked in it. */
export class Slot {
  readonly element: HTMLElement;
  readonly head = el("header", { class: "slot-head" });
  pane: Pane | null = null;
  selection: Spot | null = null;
  mark: TimeRange | null = null;
  private readonly body = el("div", { class: "slot-body" });
  private wanted: Place | null = null;

  constructor(
    public number: number,
    public capture: Capture,
    private readonly client: Client,
    private readonly palette: () => Overview["palette"],
    private readonly events: SlotEvents,
  ) {
    const activate = { focusin: () => events.active(this), pointerdown: () => events.active(this) };
    this.element = el("section", { class: "slot", on: activate }, this.head, this.body);
    this.show(capture);
  }

  /** Show another capture, or what is known by now of this one. */
  show(capture: Capture): void {
    if (capture !== this.capture) this.clear();
    this.capture = capture;
    this.element.setAttribute("aria-label", `Timeline of ${capture.name}`);
    this.element.dataset["state"] = this.pane ? "ready" : capture.state.state;
    if (this.pane) return;
    if (capture.info) this.open();
    else fill(this.body, waiting(capture));
  }

  /** Go to a place of the address as soon as there is a pane. */
  goTo(place: Place): void {
    this.wanted = place;
    if (this.pane) this.arrive(this.pane);
  }

  /** Show a time range, and an event or the range itself marked, as by a finding. */
  reveal(view: TimeRange, spot: Spot | null, mark: TimeRange | null): void {
    this.selection = spot;
    this.pane?.select(spot, { reveal: true });
    this.setMark(mark);
    this.pane?.setView(view, { smooth: true });
  }

  /** Select an event and bring it into view. */
  choose(spot: Spot): void {
    this.selection = spot;
    this.pane?.select(spot, { reveal: true });
  }

  /** Where it stands, for the address. */
  get place(): Place {
    const { selection: event, mark, pane } = this;
    return {
      capture: this.capture.id,
      view: pane ? pane.view : null,
      event: event && { table: event.table, row: event.row },
      mark,
    };
  }

  private open(): void {
    const { capture } = this;
    if (!capture.info) return;
    fill(this.body);
    const pane = createPane(this.body, this.client, capture.info, this.palette());
    this.pane = pane;
    this.element.dataset["state"] = "ready";
    this.listen(pane);
    this.arrive(pane);
  }

  private listen(pane: Pane): void {
    pane.on("view", (range) => this.events.view(this, range));
    pane.on("select", (spot) => {
      this.selection = spot;
      this.events.select(this);
    });
    pane.on("measure", (range) => {
      this.mark = range;
      this.events.mark(this);
    });
  }

  private arrive(pane: Pane): void {
    const wanted = this.wanted;
    this.wanted = null;
    if (!wanted || wanted.capture !== this.capture.id) return;
    if (wanted.mark) this.setMark(wanted.mark);
    if (wanted.view) pane.setView(wanted.view);
    if (wanted.event) void this.find(pane, wanted);
  }

  /** Mark a range; null clears the mark. */
  setMark(mark: TimeRange | null): void {
    this.mark = mark;
    this.pane?.setMeasure(mark);
  }

  private async find(pane: Pane, wanted: Place): Promise<void> {
    const event = wanted.event;
    if (!event) return;
    const details = await this.client.event(this.capture.id, event.table, event.row).catch(() => null);
    if (!details || this.pane !== pane) return; // an address of another capture: nothing to select
    this.selection = details.spot;
    pane.select(details.spot, { reveal: !wanted.view });
    this.events.select(this);
  }

  /** Take the timeline off the page. */
  clear(): void {
    this.pane?.destroy();
    this.pane = null;
    this.selection = null;
    this.mark = null;
  }
}

function waiting(capture: Capture): HTMLElement {
  const { state, message, name } = capture.state;
  if (state === "failed") {
    const text = el("p", {}, el("b", {}, `${name} could not be read`), capital(message));
    return el("div", { class: "waiting failed", role: "alert" }, text);
  }
  const doing = el("span", {}, `${capital(message || "reading the capture")}…`, elapsed());
  const text = el("p", {}, el("b", {}, name), doing);
  return el("div", { class: "waiting", role: "status" }, el("span", { class: "busy" }), text);
}
