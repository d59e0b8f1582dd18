import assert from "node:assert/strict";
import { test } from "node:test";
import { exactTime, roundStep, scaleBar, ticksOf } from "../src/timeline/pane/ticks";

const texts = (start_ns: number, end_ns: number, least: number): string[] =>
  ticksOf({ start_ns, end_ns }, least).at.map((tick) => tick.text);

test("steps are 1, 2 or 5 of a power of ten", () => {
  const chosen: [number, number][] = [[0.2, 1], [1, 1], [1.1, 2], [2, 2], [3, 5], [7, 10], [140, 200], [501e6, 1e9]];
  for (const [least, step] of chosen) assert.equal(roundStep(least), step);
});

test("ticks have the unit of their step", () => {
  assert.deepEqual(texts(0, 400e6, 90e6), ["0 ms", "100 ms", "200 ms", "300 ms", "400 ms"]);
  assert.deepEqual(texts(1.1e9, 2.2e9, 0.4e9), ["1,500 ms", "2,000 ms"]);
  assert.deepEqual(texts(0, 2500, 900), ["0 µs", "1 µs", "2 µs"]);
  assert.deepEqual(texts(0, 30, 9), ["0 ns", "10 ns", "20 ns", "30 ns"]);
});

test("what lies before the origin is negative", () => {
  assert.deepEqual(texts(-1_000_000, 1_000_000, 900_000), ["-1 ms", "0 ms", "1 ms"]);
});

test("far from the start and close up, ticks count from a common base", () => {
  const ticks = ticksOf({ start_ns: 12.345_678e9, end_ns: 12.345_678e9 + 1000 }, 180);
  assert.equal(ticks.base?.text, "12.345678 s");
  assert.deepEqual(ticks.at.map((tick) => tick.text), ["+0 ns", "+200 ns", "+400 ns", "+600 ns", "+800 ns", "+1,000 ns"]);
  assert.equal(ticks.at[1]?.time_ns, 12.345_678e9 + 200);
});

test("every tick lies in the range, one step apart", () => {
  for (const [start_ns, span] of [[0, 50], [123_456_789, 7e6], [9e14, 400], [3, 1e12]] as const) {
    const { at, step_ns } = ticksOf({ start_ns, end_ns: start_ns + span }, span / 12);
    assert.ok(at.length >= 4 && at.length <= 13, `${at.length} ticks`);
    at.forEach((tick, index) => {
      assert.ok(tick.time_ns >= start_ns && tick.time_ns <= start_ns + span);
      if (index) assert.equal(tick.time_ns - (at[index - 1]?.time_ns ?? 0), step_ns);
    });
  }
});

test("the time under the pointer is as exact as the screen", () => {
  assert.equal(exactTime(1_234_567, 1), "1.234567 ms");
  assert.equal(exactTime(12_345_678_901, 1e6), "12.3455 s");
  assert.equal(exactTime(-2_500_000, 1e5), "-2.50 ms");
  assert.equal(exactTime(999, 1), "999 ns");
});

test("the scale bar is a round length that fits", () => {
  assert.deepEqual(scaleBar(1000, 76), { pixels: 50, text: "50 µs" });
  assert.deepEqual(scaleBar(2.5e6, 80), { pixels: 80, text: "200 ms" });
  assert.deepEqual(scaleBar(0.1, 76), { pixels: 50, text: "5 ns" });
});
