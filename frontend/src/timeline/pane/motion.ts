// How the view moves by itself: glides to where it was sent, and runs while a key is held.

import type { TimeRange } from "../types";
import { between, clamped, panned, spanOf, zoomed } from "./viewport";

/** Ways to move while a key is held. */
export type Way = "in" | "out" | "left" | "right";

const GLIDE_MS = 240;
/** A tap moves for this long, so that it does something one sees. */
const TAP_MS = 110;
/** Speed at first and at most, and how long it takes to get there. */
const RAMP_MS = 700;
const ZOOM = { first: 2.4, most: 6.5 };
const PAN = { first: 0.9, most: 3.2 };
/** Longest step of time that a frame counts for: a stall must not become a jump. */
const LONGEST_FRAME_MS = 50;

interface Hold {
  readonly since: number;
  until: number;
}

/** What moves the view; read once a frame. */
export class Motion {
  private glide: { from: TimeRange; to: TimeRange; since: number; lasts: number } | null = null;
  private readonly holds = new Map<Way, Hold>();
  private last: number | null = null;

  constructor(private readonly limits: TimeRange) {}

  get moving(): boolean {
    return this.glide !== null || this.holds.size > 0;
  }

  /** Where the view is going, or null where it rests. */
  get target(): TimeRange | null {
    return this.glide?.to ?? null;
  }

  glideTo(from: TimeRange, to: TimeRange, now: number, lasts = GLIDE_MS): void {
    this.glide = { from, to: clamped(to, this.limits), since: now, lasts };
  }

  stop(): void {
    this.glide = null;
    this.holds.clear();
    this.last = null;
  }

  hold(way: Way, now: number): void {
    this.glide = null;
    this.holds.set(way, { since: this.holds.get(way)?.since ?? now, until: Infinity });
  }

  release(way: Way, now: number): void {
    const held = this.holds.get(way);
    if (held) held.until = Math.max(now, held.since + TAP_MS);
  }

  releaseAll(now: number): void {
    for (const way of this.holds.keys()) this.release(way, now);
  }

  /** The view of this frame; zooming keeps `at_ns` in its place. */
  step(view: TimeRange, at_ns: number, now: number): TimeRange {
    const passed = Math.min(now - (this.last ?? now - 16), LONGEST_FRAME_MS);
    let moved = this.glide ? this.glideStep(this.glide, now) : view;
    for (const [way, held] of this.holds) {
      if (now >= held.until) this.holds.delete(way);
      else moved = run(moved, way, at_ns, passed / 1000, (now - held.since) / RAMP_MS, this.limits);
    }
    this.last = this.moving ? now : null;
    return moved;
  }

  /** Whether a view is another than the last one reported: as one sees it while moving, exactly at rest. */
  isNews(view: TimeRange, reported: TimeRange): boolean {
    if (this.moving) return !alike(view, reported);
    return view.start_ns !== reported.start_ns || view.end_ns !== reported.end_ns;
  }

  private glideStep({ from, to, since, lasts }: NonNullable<typeof this.glide>, now: number): TimeRange {
    const progress = Math.min(1, Math.max(0, (now - since) / lasts));
    if (progress === 1) {
      this.glide = null;
      return to;
    }
    return between(from, to, 1 - (1 - progress) ** 3);
  }
}

/** Move for a moment; the longer a key is held, the quicker. */
function run(view: TimeRange, way: Way, at_ns: number, seconds: number, held: number, limits: TimeRange): TimeRange {
  const speed = ({ first, most }: { first: number; most: number }): number => first + (most - first) * Math.min(1, held);
  if (way === "left" || way === "right") return panned(view, (way === "left" ? -1 : 1) * speed(PAN) * seconds, limits);
  return zoomed(view, at_ns, Math.exp((way === "in" ? -1 : 1) * speed(ZOOM) * seconds), limits);
}

/** Whether two ranges look the same on a screen. */
function alike(one: TimeRange, other: TimeRange): boolean {
  const least = spanOf(one) * 1e-6;
  return Math.abs(one.start_ns - other.start_ns) <= least && Math.abs(one.end_ns - other.end_ns) <= least;
}
