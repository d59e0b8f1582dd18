// Windows that are there, and what is still to be requested. Drawing never waits: it takes the best
// of what is there, stretched where nothing finer has come yet.

import type { WindowRequest } from "../client";
import type { TimeRange, TimelineWindow } from "../types";
import { Held } from "./held";
import { spanOf } from "./viewport";

/** Part of the screen, and the window that is drawn in it. */
export interface Piece extends TimeRange {
  readonly held: Held;
}

/** Bins that the server gives at most. */
export const MOST_BINS = 4096;
/** Bins of the whole capture that are kept for every track looked at. */
const WHOLE_BINS = 2048;
/** Windows begin and end at multiples of so many bins: neighbors then have the same bins. */
const BLOCK = 64;
/** How far a window reaches beyond the screen, and how far at least before a new one is requested. */
const REACH = 0.5;
const SPARE = 0.15;
const BUDGET = { bytes: 64e6, windows: 24 };

/** Windows of one capture; those used last are kept. */
export class Store {
  private held: Held[] = [];
  private pending = new Set<string>();

  constructor(private readonly capture: TimeRange) {}

  /** Keep a response. */
  add(window: TimelineWindow, requested: readonly string[]): Held {
    const held = new Held(window, requested);
    window.pending.forEach((track) => this.pending.add(track));
    this.held = this.held.filter((old) => !(old.stale && this.replaces(held, old)));
    this.held.push(held);
    this.evict();
    return held;
  }

  /** Request everything again; what is there is drawn until the responses come. */
  refresh(): void {
    this.pending.clear();
    for (const held of this.held) held.stale = true;
  }

  /** Tracks that are still being computed. */
  isPending(track: string): boolean {
    return this.pending.has(track);
  }

  /** What to request so that these tracks are sharp on a screen of so many pixels; null for nothing. */
  missing(view: TimeRange, pixels: number, tracks: readonly string[]): WindowRequest | null {
    const wanted = windowFor(view, pixels, this.capture);
    const bin_ns = spanOf(wanted) / wanted.bins;
    const needed = this.within(spread(view, SPARE));
    const absent = tracks.filter((track) => !this.pending.has(track) && !this.isSharp(track, needed, bin_ns));
    return absent.length ? { ...wanted, tracks: absent } : null;
  }

  /** Request the whole capture of tracks that have only parts, as when one zooms out quickly. */
  missingWhole(tracks: readonly string[]): WindowRequest | null {
    const absent = tracks.filter((track) => !this.pending.has(track) && !this.whole(track, true));
    const { start_ns, end_ns } = this.capture;
    const bins = Math.min(WHOLE_BINS, Math.max(1, end_ns - start_ns));
    return absent.length ? { start_ns, end_ns: Math.max(end_ns, start_ns + 1), bins, tracks: absent } : null;
  }

  /** The window that shows all of the capture for a track. */
  whole(track: string, fresh = false): Held | undefined {
    const there = this.held.filter((held) => held.tracks.has(track) && held.covers(this.capture) && !(fresh && held.stale));
    return there.at(-1);
  }

  /** What to draw of a track from left to right: at each place the best that is there. */
  pieces(track: string, view: TimeRange, pixels: number): Piece[] {
    const ideal = spanOf(view) / pixels;
    const there = this.held.filter((held) => held.tracks.has(track) && meets(held, view));
    return cover(view, there, (held) => badness(held, ideal));
  }

  private isSharp(track: string, needed: TimeRange, bin_ns: number): boolean {
    return this.held.some((held) =>
      !held.stale && held.tracks.has(track) && held.bin_ns <= bin_ns * 1.001 && held.bin_ns * 8 > bin_ns && held.covers(needed));
  }

  private within(range: TimeRange): TimeRange {
    return {
      start_ns: Math.max(range.start_ns, this.capture.start_ns),
      end_ns: Math.min(range.end_ns, this.capture.end_ns),
    };
  }

  private replaces(fresh: Held, old: Held): boolean {
    return fresh.bin_ns <= old.bin_ns && fresh.covers(old) && [...old.tracks].every((track) => fresh.tracks.has(track));
  }

  /** Let the oldest windows go; those of the whole capture stay, as they are what fills gaps. */
  private evict(): void {
    const [whole, parts] = split(this.held, (held) => held.covers(this.capture));
    let bytes = whole.reduce((sum, held) => sum + held.bytes, 0);
    const kept = parts.reverse().filter((held, index) => (bytes += held.bytes) <= BUDGET.bytes && index < BUDGET.windows);
    this.held = [...this.useful(whole), ...kept.reverse()];
  }

  /** Of windows of the whole capture, those that are the newest for some track. */
  private useful(whole: readonly Held[]): Held[] {
    return whole.filter((held, index) =>
      [...held.tracks].some((track) => !whole.slice(index + 1).some((later) => later.tracks.has(track) && later.bin_ns <= held.bin_ns)));
  }
}

/** The window to request: wider than the screen, with bins of at most a pixel, on a common grid. */
export function windowFor(view: TimeRange, pixels: number, capture: TimeRange): Omit<WindowRequest, "tracks"> {
  const wanted = spread(view, REACH);
  const start = Math.max(wanted.start_ns, capture.start_ns);
  const end = Math.max(Math.min(wanted.end_ns, capture.end_ns), start + 1);
  let bin_ns = roundBin(spanOf(view) / pixels);
  while ((end - start) / bin_ns > MOST_BINS - 2 * BLOCK) bin_ns = roundBin(bin_ns * 1.5 + 0.5);
  const block = bin_ns * BLOCK;
  const from = Math.floor(start / block) * block;
  const to = Math.ceil(end / block) * block;
  return { start_ns: from, end_ns: to, bins: (to - from) / bin_ns };
}

/** The largest of 1, 2, 3, 4, 6, 8, 12, … nanoseconds that is not above. */
export function roundBin(most_ns: number): number {
  if (most_ns < 2) return 1;
  const power = 2 ** Math.floor(Math.log2(most_ns));
  return power * 1.5 <= most_ns ? power * 1.5 : power;
}

function spread(range: TimeRange, share: number): TimeRange {
  const more = spanOf(range) * share;
  return { start_ns: range.start_ns - more, end_ns: range.end_ns + more };
}

const meets = (one: TimeRange, other: TimeRange): boolean =>
  one.start_ns < other.end_ns && one.end_ns > other.start_ns;

/** How far a window's bins are from what the screen could show; too coarse is worse than too fine. */
function badness(held: Held, ideal_ns: number): number {
  const ratio = Math.log2(held.bin_ns / ideal_ns);
  return (ratio > 0 ? 2 * ratio : -ratio) + (held.stale ? 0.5 : 0);
}

/** Fill a range from the best windows, the better ones first; what none covers stays empty. */
export function cover<T extends TimeRange>(
  view: TimeRange, there: readonly T[], badnessOf: (item: T) => number,
): (TimeRange & { held: T })[] {
  const ranked = there.map((held, age) => ({ held, age, bad: badnessOf(held) }));
  ranked.sort((one, other) => one.bad - other.bad || other.age - one.age);
  const made: (TimeRange & { held: T })[] = [];
  let gaps: TimeRange[] = [view];
  for (const { held } of ranked) {
    if (gaps.length === 0) break;
    gaps = gaps.flatMap((gap) => {
      if (!meets(held, gap)) return [gap];
      const start_ns = Math.max(gap.start_ns, held.start_ns);
      const end_ns = Math.min(gap.end_ns, held.end_ns);
      made.push({ held, start_ns, end_ns });
      return [{ start_ns: gap.start_ns, end_ns: start_ns }, { start_ns: end_ns, end_ns: gap.end_ns }]
        .filter((rest) => rest.end_ns > rest.start_ns);
    });
  }
  return made.sort((one, other) => one.start_ns - other.start_ns);
}

function split<T>(all: readonly T[], test: (item: T) => boolean): [T[], T[]] {
  return [all.filter(test), all.filter((item) => !test(item))];
}
