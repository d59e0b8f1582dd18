// Which of two timelines the panel shows.

import { el, fill } from "../../shared/dom";
import type { Slot } from "./slot";
import { letterOf } from "./slot_head";

/** Two buttons with the names of the captures; hidden while there is one. */
export class CaptureSwitch {
  readonly element = el("div", { class: "about", role: "group", "aria-label": "Capture", hidden: true });
  private drawn = "";

  constructor(private readonly choose: (slot: Slot) => void) {}

  update(slots: readonly Slot[], active: Slot | null): void {
    const wanted = slots.map((slot) => `${slot.capture.id}${slot === active ? "*" : ""}`).join();
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    this.element.hidden = slots.length < 2;
    const held = this.element.contains(document.activeElement);
    fill(this.element, ...slots.map((slot) => this.button(slot, slot === active)));
    if (held) this.element.querySelector<HTMLElement>("[aria-pressed=true]")?.focus();
  }

  private button(slot: Slot, pressed: boolean): HTMLElement {
    return el(
      "button",
      {
        type: "button", "aria-pressed": String(pressed), title: slot.capture.name,
        on: { click: () => this.choose(slot) },
      },
      el("span", { class: "letter" }, letterOf(slot)),
      el("span", { class: "about-name" }, slot.capture.name),
    );
  }
}
