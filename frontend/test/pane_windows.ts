// Windows made by hand, as the server would give them.

import type { TimelineWindow, Track } from "../src/timeline/types";

export interface GivenLine {
  readonly track?: string;
  readonly line?: number;
  /** Start, end and, where it matters, label. */
  readonly slices?: readonly (readonly [start: number, end: number, label?: string])[];
  /** Bin, busy nanoseconds and count. */
  readonly bins?: readonly (readonly [bin: number, busy: number, count: number])[];
  /** Bin and value. */
  readonly points?: readonly (readonly [bin: number, value: number])[];
}

/** A window from `start` to `end` with these lines; rows count up, colors are 0. */
export function windowOf(start_ns: number, end_ns: number, bins: number, lines: readonly GivenLine[]): TimelineWindow {
  const slices = lines.flatMap((one, line) => (one.slices ?? []).map((slice) => ({ line, slice })));
  const sums = lines.flatMap((one, line) => (one.bins ?? []).map((sum) => ({ line, sum })));
  const points = lines.flatMap((one, line) => (one.points ?? []).map((point) => ({ line, point })));
  const labels = [...new Set(slices.map(({ slice }) => slice[2] ?? "event"))];
  return {
    start_ns, end_ns, bins, labels,
    lines: lines.map(({ track = "t", line }, index) => ({ track, line: line ?? index })),
    pending: [],
    slices: {
      line: Uint16Array.from(slices, ({ line }) => line),
      start_ns: Float64Array.from(slices, ({ slice }) => slice[0]),
      end_ns: Float64Array.from(slices, ({ slice }) => slice[1]),
      table: new Uint8Array(slices.length),
      row: Uint32Array.from(slices, (_, row) => row),
      label: Uint32Array.from(slices, ({ slice }) => labels.indexOf(slice[2] ?? "event")),
      color: new Uint8Array(slices.length),
    },
    bin_sums: {
      line: Uint16Array.from(sums, ({ line }) => line),
      bin: Uint32Array.from(sums, ({ sum }) => sum[0]),
      busy_ns: Float64Array.from(sums, ({ sum }) => sum[1]),
      count: Uint32Array.from(sums, ({ sum }) => sum[2]),
      color: new Uint8Array(sums.length),
    },
    points: {
      line: Uint16Array.from(points, ({ line }) => line),
      bin: Uint32Array.from(points, ({ point }) => point[0]),
      low: Float64Array.from(points, ({ point }) => point[1]),
      high: Float64Array.from(points, ({ point }) => point[1]),
      mean: Float64Array.from(points, ({ point }) => point[1]),
    },
  };
}

/** A track; what is not said is as plain as can be. */
export function trackOf(given: Partial<Track> & { readonly key: string }): Track {
  const plain = { group: "GPU 0", kind: "stream", name: given.key, tables: ["kernels"], lines: 1, events: 1 } as const;
  return { ...plain, series: false, unit: "", high: null, thread: "", ...given };
}
