// What lies under the pointer.

import type { Spot, Track } from "../types";
import { binAt, binStart, firstAbove, type HeldLine } from "./held";
import { lineAt, type Row, rowAt } from "./layout";
import type { Scene } from "./scene";
import { spanOf } from "./viewport";

/** Where the pointer is, and what is drawn there. */
export interface Hit {
  readonly row: Row;
  readonly track: Track;
  readonly line: number;
  readonly time_ns: number;
  readonly target: Found | null;
}

export type Found =
  | { readonly kind: "event"; readonly spot: Spot; readonly color: number }
  | {
      readonly kind: "bin";
      readonly start_ns: number;
      readonly end_ns: number;
      readonly count: number;
      readonly busy: number;
      readonly color: number;
    }
  | { readonly kind: "values"; readonly lines: readonly { low: number; high: number; mean: number }[] };

/** How far off the pointer may be, in pixels. */
const NEAR = 3;

/** What is drawn at a time and a height of the layout, on a screen of so many pixels. */
export function hitAt(scene: Scene, time_ns: number, y: number, pixels: number): Hit | null {
  const row = rowAt(scene.layout, y);
  const line = row && lineAt(row, y);
  if (!row?.track || line === null || line === undefined) return null;
  const near_ns = (NEAR * spanOf(scene.view)) / pixels;
  const { track } = row;
  const target = track.series ? valuesAt(scene, track, time_ns, pixels) : eventAt(scene, track, line, time_ns, near_ns, pixels);
  return { row, track, line, time_ns, target };
}

function lineHeld(scene: Scene, track: string, line: number, time_ns: number, pixels: number): HeldLine | undefined {
  const pieces = scene.store.pieces(track, scene.view, pixels);
  return pieces.find((piece) => piece.start_ns <= time_ns && piece.end_ns >= time_ns)?.held.line(track, line);
}

function eventAt(
  scene: Scene, track: Track, line: number, time_ns: number, near_ns: number, pixels: number,
): Found | null {
  const held = lineHeld(scene, track.key, line, time_ns, pixels);
  if (held === undefined) return null;
  const inside = sliceAt(held, time_ns, 0);
  if (inside !== null) return foundAt(held, inside, track, line);
  const bin = sumAt(held, time_ns, near_ns);
  if (bin) return bin;
  const near = sliceAt(held, time_ns, near_ns);
  return near === null ? null : foundAt(held, near, track, line);
}

/** Position of the slice at a time, or of the next one within reach. */
function sliceAt(held: HeldLine, time_ns: number, near_ns: number): number | null {
  const { start_ns, end_ns } = held.window.slices;
  const at = firstAbove(end_ns, held.slices, time_ns - near_ns);
  return at < held.slices.to && (start_ns[at] as number) <= time_ns + near_ns ? at : null;
}

function foundAt(held: HeldLine, at: number, track: Track, line: number): Found {
  return { kind: "event", spot: spotOf(held, at, track, line), color: held.window.slices.color[at] as number };
}

function spotOf(held: HeldLine, at: number, track: Track, line: number): Spot {
  const { slices, labels } = held.window;
  return {
    table: track.tables[slices.table[at] as number] ?? "",
    row: slices.row[at] as number,
    start_ns: slices.start_ns[at] as number,
    end_ns: slices.end_ns[at] as number,
    track: track.key,
    line,
    name: labels[slices.label[at] as number] ?? "",
  };
}

/** The bin nearest to a time, within reach. */
function sumAt(held: HeldLine, time_ns: number, near_ns: number): Found | null {
  const { bin, busy_ns, count, color } = held.window.bin_sums;
  const here = binAt(held.window, time_ns);
  const last = binAt(held.window, time_ns + near_ns);
  let best: number | null = null;
  for (let at = firstAbove(bin, held.bins, binAt(held.window, time_ns - near_ns) - 1); at < held.bins.to; at++) {
    if ((bin[at] as number) > last) break;
    if (best === null || Math.abs((bin[at] as number) - here) < Math.abs((bin[best] as number) - here)) best = at;
  }
  if (best === null) return null;
  const start_ns = binStart(held.window, bin[best] as number);
  const end_ns = binStart(held.window, (bin[best] as number) + 1);
  const busy = (busy_ns[best] as number) / (end_ns - start_ns);
  return { kind: "bin", start_ns, end_ns, count: count[best] as number, busy, color: color[best] as number };
}

function valuesAt(scene: Scene, track: Track, time_ns: number, pixels: number): Found | null {
  const lines = Array.from({ length: Math.max(1, track.lines) }, (_, line) => {
    const held = lineHeld(scene, track.key, line, time_ns, pixels);
    return held ? valueAt(held, time_ns) : null;
  }).filter((value) => value !== null);
  return lines.length ? { kind: "values", lines } : null;
}

/** Values of the bin at a time, or of the last one before it. */
function valueAt(held: HeldLine, time_ns: number): { low: number; high: number; mean: number } | null {
  const { bin, low, high, mean } = held.window.points;
  const at = firstAbove(bin, held.points, binAt(held.window, time_ns)) - 1;
  if (at < held.points.from) return null;
  return { low: low[at] as number, high: high[at] as number, mean: mean[at] as number };
}
