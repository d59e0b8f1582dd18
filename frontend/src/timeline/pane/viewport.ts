// The time range that is shown, and how it moves. Pure: a range in, a range out.

import type { TimeRange } from "../types";

/** The least that a screen shows, in nanoseconds. */
export const LEAST_NS = 50;
/** How much more than the capture a screen shows at most. */
const MARGIN = 0.02;

/** Where one may look: the capture and a little to either side. */
export function limitsOf(capture: TimeRange): TimeRange {
  const span = Math.max(capture.end_ns - capture.start_ns, LEAST_NS);
  const margin = (span * MARGIN) / 2;
  return { start_ns: capture.start_ns - margin, end_ns: capture.start_ns + span + margin };
}

export function spanOf(range: TimeRange): number {
  return range.end_ns - range.start_ns;
}

/** The nearest range that lies within the limits and shows neither too little nor too much. */
export function clamped(range: TimeRange, limits: TimeRange): TimeRange {
  const span = Math.min(Math.max(spanOf(range), LEAST_NS), spanOf(limits));
  const middle = (range.start_ns + range.end_ns) / 2;
  const wanted = span === spanOf(range) ? range.start_ns : middle - span / 2;
  const start_ns = Math.min(Math.max(wanted, limits.start_ns), limits.end_ns - span);
  return { start_ns, end_ns: start_ns + span };
}

/** Show `factor` times as much; the time `at_ns` stays where it is on the screen. */
export function zoomed(range: TimeRange, at_ns: number, factor: number, limits: TimeRange): TimeRange {
  const before = spanOf(range);
  const span = Math.min(Math.max(before * factor, LEAST_NS), spanOf(limits));
  const start_ns = at_ns - ((at_ns - range.start_ns) * span) / before;
  return clamped({ start_ns, end_ns: start_ns + span }, limits);
}

/** Move by a share of what is shown. */
export function panned(range: TimeRange, screens: number, limits: TimeRange): TimeRange {
  const shift = spanOf(range) * screens;
  return clamped({ start_ns: range.start_ns + shift, end_ns: range.end_ns + shift }, limits);
}

/** A range with room to either side, so that `share` of the screen is the range itself. */
export function framed(range: TimeRange, share: number): TimeRange {
  const span = Math.max(spanOf(range), 1) / share;
  const middle = (range.start_ns + range.end_ns) / 2;
  return { start_ns: middle - span / 2, end_ns: middle + span / 2 };
}

/** Part of the way from one range to another: a steady zoom, each time on a straight line. */
export function between(from: TimeRange, to: TimeRange, progress: number): TimeRange {
  const [before, after] = [spanOf(from), spanOf(to)];
  const span = before * (after / before) ** progress;
  const alike = Math.abs(after - before) < 1e-6 * before;
  const share = alike ? progress : (span - before) / (after - before);
  const start_ns = from.start_ns + (to.start_ns - from.start_ns) * share;
  return { start_ns, end_ns: start_ns + span };
}

/** Times as places on a strip of so many pixels. */
export class Scale {
  /** Pixels a nanosecond. */
  readonly perNs: number;
  /** Whole pixels from time 0 to the left edge: places move together, so that nothing trembles. */
  private readonly offset: number;

  constructor(readonly range: TimeRange, readonly width: number) {
    this.perNs = width / spanOf(range);
    this.offset = Math.round(range.start_ns * this.perNs);
  }

  x(time_ns: number): number {
    return time_ns * this.perNs - this.offset;
  }

  /** As `x`, on the grid of pixels. */
  pixel(time_ns: number): number {
    return Math.round(time_ns * this.perNs) - this.offset;
  }

  time(x: number): number {
    return this.range.start_ns + x / this.perNs;
  }
}
