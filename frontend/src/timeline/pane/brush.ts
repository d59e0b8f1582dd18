// Dragging on the ruler and on the overview: an edge, the whole, or a new range.

import type { TimeRange } from "../types";
import { placeOn } from "./input";
import { Scale, spanOf } from "./viewport";

/** What a drag takes hold of. */
export type Grip = "start" | "end" | "whole" | "new";

const NEAR = 7;
const STILL = 3;

/** What lies at a place of a strip: an edge of the range, its inside where that can be moved, or neither. */
export function gripAt(scale: Scale, range: TimeRange | null, x: number, movable: boolean): Grip {
  if (range === null) return "new";
  const [left, right] = [scale.x(range.start_ns), scale.x(range.end_ns)];
  const [toLeft, toRight] = [Math.abs(x - left), Math.abs(x - right)];
  if (Math.min(toLeft, toRight) <= NEAR) return toLeft < toRight || (toLeft === toRight && x < left) ? "start" : "end";
  return movable && x > left && x < right ? "whole" : "new";
}

/** Where the range is after a drag from one time to another. */
export function dragged(grip: Grip, before: TimeRange | null, from_ns: number, to_ns: number): TimeRange {
  if (grip === "new" || before === null) return ordered(from_ns, to_ns);
  const shift = to_ns - from_ns;
  if (grip === "whole") return { start_ns: before.start_ns + shift, end_ns: before.end_ns + shift };
  return grip === "start" ? ordered(before.start_ns + shift, before.end_ns) : ordered(before.start_ns, before.end_ns + shift);
}

const ordered = (one: number, other: number): TimeRange => ({ start_ns: Math.min(one, other), end_ns: Math.max(one, other) });

/** A strip on which a range is dragged. */
export interface Strip {
  /** What its width stands for now. */
  shows(): TimeRange;
  /** The range that is there now. */
  holds(): TimeRange | null;
  changed(range: TimeRange): void;
  /** It was clicked, not dragged. */
  clicked(time_ns: number): void;
  readonly movable: boolean;
}

/** Let a range be dragged on an element. */
export function brush(element: HTMLElement, strip: Strip): void {
  let held: { grip: Grip; scale: Scale; before: TimeRange | null; x: number; moved: boolean } | null = null;
  const scaleNow = (): Scale => new Scale(strip.shows(), element.clientWidth);
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    const [x, scale, before] = [placeOn(element, event), scaleNow(), strip.holds()];
    held = { grip: gripAt(scale, before, x, strip.movable), scale, before, x, moved: false };
  });
  element.addEventListener("pointermove", (event) => {
    const x = placeOn(element, event);
    element.dataset["grip"] = held?.grip ?? gripAt(scaleNow(), strip.holds(), x, strip.movable);
    if (held === null || (!held.moved && Math.abs(x - held.x) < STILL)) return;
    held.moved = true;
    const range = dragged(held.grip, held.before, held.scale.time(held.x), held.scale.time(x));
    if (spanOf(range) > 0) strip.changed(range);
  });
  element.addEventListener("pointerup", (event) => {
    if (held && !held.moved) strip.clicked(held.scale.time(placeOn(element, event)));
    held = null;
  });
  element.addEventListener("pointercancel", () => (held = null));
}
