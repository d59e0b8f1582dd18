// Two timelines that move together.

import { smallButton } from "../../shared/buttons";
import { el, fill } from "../../shared/dom";
import type { TimeRange } from "../types";
import { type Alignment, alignments, carried, touches } from "./alignment";
import type { Slot } from "./slot";

const NAMES: Readonly<Record<Alignment, string>> = { step: "first step after warm-up", start: "start" };

/**
 * Carries the view of one timeline to the other, while linked. At first they are where steps can be
 * aligned: from their starts captures differ by how long they took to begin, which says nothing.
 */
export class Linking {
  readonly controls = el("div", { class: "linking", role: "group", "aria-label": "Linked timelines" });
  private linked = true;
  private by: Alignment = "step";
  private offered = "";

  constructor(private readonly slots: readonly Slot[]) {}

  /** Let the other timelines show what this one shows. */
  carry(from: Slot, range: TimeRange): void {
    const info = from.capture.info;
    if (!this.linked || !info) return;
    for (const slot of this.slots) {
      const other = slot.capture.info;
      if (slot === from || !slot.pane || !other) continue;
      const there = carried(range, info, other, this.chosen());
      if (touches(there, other)) slot.pane.setView(there, { silent: true }); // rather than nothing, what it showed
    }
  }

  /** Take the second's place from the first, as when it has just been opened. */
  realign(): void {
    if (this.offered === "" && this.offers().length) this.linked = this.offers().includes("step");
    const first = this.slots.find((slot) => slot.pane);
    if (first?.pane) this.carry(first, first.pane.view);
    this.draw();
  }

  private chosen(): Alignment {
    const offered = this.offers();
    return offered.includes(this.by) ? this.by : (offered[0] ?? "start");
  }

  private offers(): Alignment[] {
    const [one, other] = this.slots.map((slot) => slot.capture.info);
    return one && other ? alignments(one, other) : [];
  }

  private draw(): void {
    const offers = this.offers();
    if (offers.join() === this.offered) return;
    this.offered = offers.join();
    if (offers.length) fill(this.controls, this.toggle(), this.chooser(offers));
    else fill(this.controls);
  }

  private toggle(): HTMLElement {
    const button = smallButton("Linked", () => {
      this.linked = !this.linked;
      button.setAttribute("aria-pressed", String(this.linked));
      this.realign();
    }, "link");
    button.setAttribute("aria-pressed", String(this.linked));
    return button;
  }

  private chooser(offers: readonly Alignment[]): HTMLElement {
    const choices = offers.map((offer) => el("option", { value: offer, selected: offer === this.chosen() }, NAMES[offer]));
    const select = el("select", { id: "alignment", "aria-label": "Aligned at" }, ...choices);
    select.addEventListener("change", () => {
      this.by = select.value === "step" ? "step" : "start";
      this.realign();
    });
    return el("label", { class: "chooser" }, el("span", {}, "aligned at"), select);
  }
}
