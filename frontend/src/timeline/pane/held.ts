// A window that has arrived, ready to be drawn and searched: where each line's events begin and end.

import type { TimeRange, TimelineWindow } from "../types";

/** Part of the columns that belongs to one line: from `from` up to, but not including, `to`. */
export interface Part {
  readonly from: number;
  readonly to: number;
}

/** One line of a window. */
export interface HeldLine {
  readonly window: TimelineWindow;
  readonly slices: Part;
  readonly bins: Part;
  readonly points: Part;
}

/** A window, by track and line. */
export class Held implements TimeRange {
  readonly start_ns: number;
  readonly end_ns: number;
  readonly bin_ns: number;
  /** Tracks that it covers: neither absent nor still being computed. */
  readonly tracks: ReadonlySet<string>;
  /** Of its columns, about. */
  readonly bytes: number;
  /** Whether it was requested again since, so that it is only drawn until the new one is there. */
  stale = false;
  private readonly lines = new Map<string, HeldLine[]>();

  constructor(readonly window: TimelineWindow, requested: readonly string[]) {
    this.start_ns = window.start_ns;
    this.end_ns = window.end_ns;
    this.bin_ns = (window.end_ns - window.start_ns) / window.bins;
    const pending = new Set(window.pending);
    this.tracks = new Set(requested.filter((track) => !pending.has(track)));
    this.bytes = window.slices.line.length * 30 + window.bin_sums.line.length * 19 + window.points.line.length * 30;
    this.index();
  }

  line(track: string, line: number): HeldLine | undefined {
    return this.lines.get(track)?.[line];
  }

  covers(range: TimeRange): boolean {
    return this.start_ns <= range.start_ns && this.end_ns >= range.end_ns;
  }

  private index(): void {
    const { window } = this;
    const count = window.lines.length;
    const slices = parts(window.slices.line, count);
    const bins = parts(window.bin_sums.line, count);
    const points = parts(window.points.line, count);
    window.lines.forEach(({ track, line }, position) => {
      const lines = this.lines.get(track) ?? [];
      lines[line] = {
        window,
        slices: slices[position] ?? NONE,
        bins: bins[position] ?? NONE,
        points: points[position] ?? NONE,
      };
      this.lines.set(track, lines);
    });
  }
}

const NONE: Part = { from: 0, to: 0 };

/** Where each line's rows stand in a column that is in order of line. */
function parts(line: Uint16Array, count: number): Part[] {
  const made: Part[] = [];
  let from = 0;
  for (let position = 0; position < count; position++) {
    let to = from;
    while (to < line.length && line[to] === position) to++;
    made.push({ from, to });
    from = to;
  }
  return made;
}

/** Position of the first value of a sorted part that is more than `least`. */
export function firstAbove(values: Float64Array | Uint32Array, part: Part, least: number): number {
  let [low, high] = [part.from, part.to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] as number) > least) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Number of the bin that a time lies in; may lie outside the window. */
export function binAt(window: TimelineWindow, time_ns: number): number {
  return Math.floor(((time_ns - window.start_ns) * window.bins) / (window.end_ns - window.start_ns));
}

export function binStart(window: TimelineWindow, bin: number): number {
  return window.start_ns + (bin * (window.end_ns - window.start_ns)) / window.bins;
}
