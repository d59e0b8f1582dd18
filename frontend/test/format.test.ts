// The expected texts are what src/gpusight/units.py gives for the same numbers.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  capital, formatBytes, formatCount, formatRate, formatReal, formatShare, formatTime,
} from "../src/shared/format";

test("times have four digits and the unit that fits", () => {
  const shown: [number | null, string][] = [
    [null, "-"], [NaN, "-"], [0, "0 ns"], [999, "999 ns"], [1.25, "1.2 ns"], [1000, "1.000 µs"],
    [999_960, "1.000 ms"], [999_940, "999.9 µs"], [10_112_351.3, "10.11 ms"], [12_506_222.9, "12.51 ms"],
    [1e9, "1.000 s"], [3_600_000e6, "3,600 s"], [-1500, "-1.500 µs"], [1062.5, "1.062 µs"], [1187.5, "1.188 µs"],
  ];
  for (const [ns, text] of shown) assert.equal(formatTime(ns), text);
  const short: [number, string][] = [[46_925_000, "46.9 ms"], [9_962_000, "9.96 ms"], [999_600, "1.00 ms"], [4_216_000, "4.22 ms"]];
  for (const [ns, text] of short) assert.equal(formatTime(ns, 3), text);
});

test("bytes and rates are decimal", () => {
  assert.equal(formatBytes(1_500_000), "1.500 MB");
  assert.equal(formatBytes(12), "12 B");
  assert.equal(formatBytes(2.5e18), "2,500 PB");
  assert.equal(formatRate(12.5e9), "12.50 GB/s");
  assert.equal(formatRate(null), "-");
});

test("counts are grouped, and keep a fraction", () => {
  assert.equal(formatCount(1234567), "1,234,567");
  assert.equal(formatCount(0), "0");
  assert.equal(formatCount(12.5), "12.50");
  assert.equal(formatCount(-1000), "-1,000");
});

test("a small share does not read as zero", () => {
  assert.equal(formatShare(0), "0.0%");
  assert.equal(formatShare(0.0004), "<0.1%");
  assert.equal(formatShare(0.8085855642313876), "80.9%");
  assert.equal(formatShare(1), "100.0%");
  assert.equal(formatShare(0.0625 / 100 + 0.03), "3.1%");
});

test("numbers have four digits", () => {
  assert.equal(formatReal(0), "0");
  assert.equal(formatReal(0.0001234), "1.234e-04");
  assert.equal(formatReal(12345.6), "12,346");
  assert.equal(formatReal(2.5), "2.500");
});

test("a line begins with a capital letter unless it begins with a name", () => {
  const shown: [string, string][] = [
    ["reading the capture", "Reading the capture"], ["", ""], ["gpusight failed", "gpusight failed"],
    ["launch-bound not evaluated", "launch-bound not evaluated"],
    ["`data` is slow", "`data` is slow"], ["run.sqlite: broken", "run.sqlite: broken"],
  ];
  for (const [text, expected] of shown) assert.equal(capital(text), expected);
});
