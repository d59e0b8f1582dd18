import assert from "node:assert/strict";
import { test } from "node:test";
import type { Client, WindowRequest } from "../src/timeline/client";
import { neighbor } from "../src/timeline/pane/neighbor";
import type { CaptureInfo, Spot } from "../src/timeline/types";
import { trackOf, windowOf } from "./pane_windows";

/** Long and short events, instants, neighbors without a gap, and long pauses. */
const EVENTS: [number, number][] = [[0, 1000], [1000, 1001], [1001, 1001], [5000, 5003], [2_000_000, 2_000_400], [2_000_400, 9_000_000]];
const info = { id: 0, start_ns: 0, end_ns: 9_000_000 } as unknown as CaptureInfo;
const track = trackOf({ key: "t" });

const spotOf = (row: number): Spot => {
  const [start_ns, end_ns] = EVENTS[row] as [number, number];
  return { table: "kernels", row, start_ns, end_ns, track: "t", line: 0, name: "" };
};

/** Answers as the server does, event by event. */
const client = {
  window: async (_: number, { start_ns, end_ns, bins }: WindowRequest) => {
    const bin_ns = (end_ns - start_ns) / bins;
    const touching = EVENTS.filter(([start, end]) => start < end_ns && (end > start_ns || (start === end && start >= start_ns)));
    const wide = touching.filter(([start, end]) => end - start >= Math.max(1, bin_ns));
    const sums = touching.filter((event) => !wide.includes(event)).map(([start]) => Math.floor((start - start_ns) / bin_ns));
    const narrow = [...new Set(sums)].map((bin) => [bin, 1, 1] as const);
    return windowOf(start_ns, end_ns, bins, [{ slices: wide, bins: narrow }]);
  },
  pick: async (_: number, __: string, ___: number, time_ns: number, within_ns: number) => {
    const away = ([start, end]: [number, number]): number => Math.max(0, start - time_ns, time_ns - end);
    const ranked = EVENTS.map((event, row) => ({ row, away: away(event) })).sort((one, other) => one.away - other.away);
    return ranked[0] && ranked[0].away <= within_ns ? spotOf(ranked[0].row) : null;
  },
} as unknown as Client;

const beside = async (row: number, direction: 1 | -1): Promise<number | null> =>
  (await neighbor(client, info, track, spotOf(row), direction))?.row ?? null;

test("the next event is found across any pause", async () => {
  assert.equal(await beside(3, 1), 4);
  assert.equal(await beside(4, 1), 5);
  assert.equal(await beside(2, 1), 3);
});

test("so is the one before", async () => {
  assert.equal(await beside(5, -1), 4);
  assert.equal(await beside(4, -1), 3);
  assert.equal(await beside(1, -1), 0);
});

test("at the ends of a line there is none", async () => {
  assert.equal(await beside(5, 1), null);
  assert.equal(await beside(0, -1), null);
});
