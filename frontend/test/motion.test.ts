import assert from "node:assert/strict";
import { test } from "node:test";
import { Motion } from "../src/timeline/pane/motion";
import { limitsOf, spanOf } from "../src/timeline/pane/viewport";
import type { TimeRange } from "../src/timeline/types";

const limits = limitsOf({ start_ns: 0, end_ns: 1e9 });
const view = { start_ns: 400e6, end_ns: 500e6 };

/** Views of frames 16 ms apart, until it rests or `most` have been. */
function frames(motion: Motion, from: TimeRange, start: number, most: number): TimeRange[] {
  const made: TimeRange[] = [];
  let now = start;
  for (let seen = from; motion.moving && made.length < most; now += 16) made.push((seen = motion.step(seen, 450e6, now)));
  return made;
}

test("a glide ends exactly where it was sent", () => {
  const motion = new Motion(limits);
  motion.glideTo(view, { start_ns: 10e6, end_ns: 12e6 }, 0);
  const seen = frames(motion, view, 0, 100);
  assert.deepEqual(seen.at(-1), { start_ns: 10e6, end_ns: 12e6 });
  assert.ok(seen.length > 5 && seen.length < 30);
});

test("where a glide ends is reported, however near its last frame was", () => {
  const motion = new Motion(limits);
  const end = { start_ns: 10e6, end_ns: 12e6 };
  motion.glideTo(view, end, 0);
  const near = { start_ns: 10e6 + 1, end_ns: 12e6 };
  assert.ok(!motion.isNews(end, near), "too little to see on the way");
  motion.step(view, 450e6, 10_000);
  assert.ok(motion.isNews(end, near));
  assert.ok(!motion.isNews(end, end));
});

test("a tap zooms a little, and stops by itself", () => {
  const motion = new Motion(limits);
  motion.hold("in", 0);
  motion.release("in", 1);
  const last = frames(motion, view, 0, 100).at(-1);
  assert.ok(last && !motion.moving);
  const factor = spanOf(last) / spanOf(view);
  assert.ok(factor > 0.6 && factor < 0.9, String(factor));
  assert.ok(Math.abs((450e6 - last.start_ns) / spanOf(last) - 0.5) < 1e-9, "about the pointer");
});

test("a key that is held moves ever quicker", () => {
  const motion = new Motion(limits);
  motion.hold("right", 0);
  const seen = [view, ...frames(motion, view, 0, 40)];
  const steps = seen.slice(1).map((one, index) => one.start_ns - (seen[index]?.start_ns ?? 0));
  assert.ok(steps.every((step) => step > 0));
  assert.ok((steps.at(-1) ?? 0) > 2 * (steps[0] ?? 0));
});

test("a stall of the screen is not made up for by a jump", () => {
  const motion = new Motion(limits);
  motion.hold("right", 0);
  const before = motion.step(view, 0, 16);
  const after = motion.step(before, 0, 5016);
  assert.ok(after.start_ns - before.start_ns < 0.2 * spanOf(view));
});

test("two keys work together, and letting go of all stops", () => {
  const motion = new Motion(limits);
  motion.hold("in", 0);
  motion.hold("left", 0);
  const [first] = frames(motion, view, 0, 1);
  assert.ok(first && spanOf(first) < spanOf(view) && first.start_ns < view.start_ns + spanOf(view));
  motion.releaseAll(200);
  frames(motion, view, 200, 5);
  assert.equal(motion.moving, false);
});
