// The line above a timeline where there are several: which capture it shows.

import { el } from "../../shared/dom";
import { type Capture, gpuNames } from "./captures";
import type { Slot } from "./slot";

/** Letter, name and GPUs of a timeline's capture; a chooser stands where the name would. */
export function slotHead(slot: Slot, several: boolean, chooser: HTMLElement | null): (HTMLElement | null)[] {
  const { capture } = slot;
  const gpus = capture.info ? gpuNames(capture.info.gpus) : "";
  return [
    several ? el("span", { class: "letter" }, letterOf(slot)) : null,
    el("h2", { class: chooser ? "visually-hidden" : "slot-name", title: capture.name }, capture.name),
    chooser,
    gpus ? el("span", { class: "slot-about" }, gpus) : null,
  ];
}

/** The timelines are called A and B. */
export function letterOf(slot: Slot): string {
  return slot.number === 0 ? "A" : "B";
}

/** A choice of captures for a timeline, where there are more than fit. */
export function captureChooser(
  slot: Slot,
  captures: readonly Capture[],
  chosen: (capture: Capture) => void,
): HTMLElement {
  const choices = captures.map((capture) => el("option", { value: capture.id, selected: capture === slot.capture }, capture.name));
  const select = el("select", { "aria-label": `Capture of timeline ${letterOf(slot)}` }, ...choices);
  select.addEventListener("change", () => {
    const selected = captures.find((capture) => capture.id === Number(select.value));
    if (selected) chosen(selected);
  });
  return el("span", { class: "chooser" }, select);
}
