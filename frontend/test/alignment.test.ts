import assert from "node:assert/strict";
import { test } from "node:test";
import { alignments, carried, firstJudged, touches } from "../src/timeline/app/alignment";
import { around } from "../src/timeline/app/framing";
import type { CaptureInfo, Step } from "../src/timeline/types";

function step(number: number, start_ns: number, warmup: boolean): Step {
  return { number, name: `step ${number}`, start_ns, end_ns: start_ns + 10, warmup };
}

function capture(start_ns: number, steps: readonly Step[]): CaptureInfo {
  return {
    id: 0, name: "a", tool: "", gpus: [], start_ns, end_ns: start_ns + 1000,
    tracks: [], colors: [], steps, notes: [], first_view: null, job: false,
  };
}

const ONE = capture(100, [step(0, 150, true), step(1, 200, false), step(2, 300, false)]);
const OTHER = capture(5000, [step(0, 5500, false)]);
const STEPLESS = capture(7000, []);

test("warm-up is not evaluated", () => {
  assert.equal(firstJudged(ONE)?.number, 1);
  assert.equal(firstJudged(STEPLESS), null);
});

test("captures align at the first step after warm-up where both have one", () => {
  assert.deepEqual(alignments(ONE, OTHER), ["step", "start"]);
  assert.deepEqual(alignments(ONE, STEPLESS), ["start"]);
  const view = { start_ns: 190, end_ns: 310 };
  assert.deepEqual(carried(view, ONE, OTHER, "step"), { start_ns: 5490, end_ns: 5610 });
  assert.deepEqual(carried(view, ONE, OTHER, "start"), { start_ns: 5090, end_ns: 5210 });
  assert.deepEqual(carried(view, ONE, STEPLESS, "step"), { start_ns: 6990, end_ns: 7110 });
});

test("a carried view comes back as it was", () => {
  const view = { start_ns: 123, end_ns: 456 };
  assert.deepEqual(carried(carried(view, ONE, OTHER, "step"), OTHER, ONE, "step"), view);
});

test("a stretch beside a capture shows nothing of it", () => {
  const shown = ([start_ns, end_ns]: [number, number]) => touches({ start_ns, end_ns }, ONE);
  assert.deepEqual(([[0, 100], [0, 101], [500, 600], [1099, 2000], [1100, 2000]] as [number, number][]).map(shown), [false, true, true, true, false]);
});

test("a place is shown with what lies around it", () => {
  const bounds = { start_ns: 0, end_ns: 1_000_000 };
  const shown = around({ start_ns: 500_000, end_ns: 510_000 }, bounds);
  assert.deepEqual(shown, { start_ns: 496_000, end_ns: 514_000 });
  assert.deepEqual(around({ start_ns: 0, end_ns: 1_000_000 }, bounds), bounds);
  const moment = around({ start_ns: 500, end_ns: 500 }, { start_ns: 0, end_ns: 10_000 });
  assert.ok(moment.start_ns < 500 && moment.end_ns > 500);
});
