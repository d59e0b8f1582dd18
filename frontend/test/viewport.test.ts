import assert from "node:assert/strict";
import { test } from "node:test";
import {
  between, clamped, framed, LEAST_NS, limitsOf, panned, Scale, spanOf, zoomed,
} from "../src/timeline/pane/viewport";

const range = (start_ns: number, end_ns: number) => ({ start_ns, end_ns });
const limits = limitsOf(range(1_000_000, 2_000_000));
const near = (one: number, other: number, within = 1e-6): void =>
  assert.ok(Math.abs(one - other) <= within, `${one} is not ${other}`);

test("one may look a little beyond the capture", () => {
  assert.deepEqual(limits, range(990_000, 2_010_000));
  assert.ok(spanOf(limitsOf(range(5, 5))) >= LEAST_NS);
});

test("zooming keeps the time under the pointer where it is", () => {
  const view = range(1_200_000, 1_400_000);
  for (const share of [0, 0.1, 0.5, 0.93, 1]) {
    for (const factor of [0.01, 0.5, 0.9, 1.1, 2]) {
      const at = view.start_ns + share * spanOf(view);
      const seen = zoomed(view, at, factor, limits);
      near(spanOf(seen), spanOf(view) * factor);
      near((at - seen.start_ns) / spanOf(seen), share);
    }
  }
});

test("zooming ends at fifty nanoseconds and at the whole capture", () => {
  const view = range(1_200_000, 1_400_000);
  const close = zoomed(view, 1_300_000, 1e-9, limits);
  near(spanOf(close), LEAST_NS);
  near((1_300_000 - close.start_ns) / spanOf(close), 0.5);
  assert.deepEqual(zoomed(view, 1_300_000, 1e9, limits), limits);
});

test("panning stops at the edges and keeps its length", () => {
  const view = range(1_200_000, 1_400_000);
  assert.deepEqual(panned(view, 0.5, limits), range(1_300_000, 1_500_000));
  assert.deepEqual(panned(view, -50, limits), range(990_000, 1_190_000));
  assert.deepEqual(panned(view, 50, limits), range(1_810_000, 2_010_000));
});

test("a range that cannot be shown becomes the nearest that can", () => {
  assert.deepEqual(clamped(range(0, 9e9), limits), limits);
  assert.deepEqual(clamped(range(1_500_000, 1_500_000), limits), range(1_499_975, 1_500_025));
  assert.deepEqual(clamped(range(-500, 500), limits), range(990_000, 991_000));
});

test("a frame leaves room to either side", () => {
  assert.deepEqual(framed(range(100, 200), 0.5), range(50, 250));
  assert.equal(spanOf(framed(range(7, 7), 0.5)), 2);
});

test("a glide begins and ends where it should, and moves one way only", () => {
  const [from, to] = [range(0, 1000), range(400, 410)];
  assert.deepEqual(between(from, to, 0), from);
  near(between(from, to, 1).start_ns, 400);
  near(between(from, to, 1).end_ns, 410);
  const starts = Array.from({ length: 21 }, (_, index) => between(from, to, index / 20).start_ns);
  assert.deepEqual(starts, [...starts].sort((one, other) => one - other));
  assert.deepEqual(between(range(0, 100), range(50, 150), 0.5), range(25, 125));
});

test("places and times agree, and pixels move together", () => {
  const scale = new Scale(range(1e15, 1e15 + 1000), 500);
  near(scale.x(1e15 + 500), 250, 0.6);
  assert.equal(scale.time(250), 1e15 + 500);
  const times = [1e15 + 13, 1e15 + 14.7, 1e15 + 333, 1e15 + 901];
  const apart = (one: Scale): number[] => times.map((time) => one.pixel(time) - one.pixel(times[0] as number));
  for (const shift of [0.1, 0.77, 3.3, 40.01]) {
    assert.deepEqual(apart(new Scale(range(1e15 + shift, 1e15 + 1000 + shift), 500)), apart(scale));
  }
});
