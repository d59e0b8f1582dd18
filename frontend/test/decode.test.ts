import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeWindow } from "../src/timeline/decode";

type Values = Uint8Array | Uint16Array | Uint32Array | Float64Array;
const TYPES = new Map<unknown, string>([[Uint8Array, "u1"], [Uint16Array, "u2"], [Uint32Array, "u4"], [Float64Array, "f8"]]);

const COLUMNS: Record<string, Record<string, Values>> = {
  slices: {
    line: Uint16Array.of(0, 0, 1),
    start_ns: Float64Array.of(1, 5, 9_007_199_254_740_991),
    end_ns: Float64Array.of(3, 8, 9_007_199_254_740_992),
    table: Uint8Array.of(0, 1, 0),
    row: Uint32Array.of(7, 4_294_967_295, 9),
    label: Uint32Array.of(0, 1, 0),
    color: Uint8Array.of(2, 255, 0),
  },
  bin_sums: {
    line: Uint16Array.of(1),
    bin: Uint32Array.of(12),
    busy_ns: Float64Array.of(0.5),
    count: Uint32Array.of(3),
    color: Uint8Array.of(4),
  },
  points: {
    line: new Uint16Array(0),
    bin: new Uint32Array(0),
    low: new Float64Array(0),
    high: new Float64Array(0),
    mean: new Float64Array(0),
  },
};

/** Bytes as the server writes them. */
function encoded(columns: typeof COLUMNS): ArrayBuffer {
  const described: Record<string, Record<string, object>> = {};
  const placed: { offset: number; values: Values }[] = [];
  let offset = 0;
  for (const [group, members] of Object.entries(columns)) {
    described[group] = {};
    for (const [name, values] of Object.entries(members)) {
      described[group][name] = { type: TYPES.get(values.constructor), offset, length: values.length };
      placed.push({ offset, values });
      offset += Math.ceil(values.byteLength / 8) * 8;
    }
  }
  const told = {
    start_ns: 0, end_ns: 100, bins: 20, lines: [{ track: "a", line: 0 }, { track: "a", line: 1 }],
    pending: ["b"], labels: ["gemm «ü»", "</script>"], columns: described,
  };
  const text = new TextEncoder().encode(JSON.stringify(told));
  const body = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new Uint8Array(body + offset).fill(32, 0, body);
  bytes.set(text, 4);
  new DataView(bytes.buffer).setUint32(0, body - 4, true);
  for (const { offset: at, values } of placed) bytes.set(new Uint8Array(values.buffer), body + at);
  return bytes.buffer;
}

test("a window comes out as it went in", () => {
  const window = decodeWindow(encoded(COLUMNS));
  assert.deepEqual([window.start_ns, window.end_ns, window.bins, window.pending], [0, 100, 20, ["b"]]);
  assert.deepEqual(window.labels, ["gemm «ü»", "</script>"]);
  assert.deepEqual(window.lines, [{ track: "a", line: 0 }, { track: "a", line: 1 }]);
  assert.deepEqual({ ...window.slices }, COLUMNS["slices"]);
  assert.deepEqual({ ...window.bin_sums }, COLUMNS["bin_sums"]);
  assert.deepEqual({ ...window.points }, COLUMNS["points"]);
});

test("columns are views, not copies", () => {
  const bytes = encoded(COLUMNS);
  assert.equal(decodeWindow(bytes).slices.start_ns.buffer, bytes);
});

test("what is not a window is refused with the reason", () => {
  const whole = encoded(COLUMNS);
  assert.throws(() => decodeWindow(new ArrayBuffer(2)), /no header/);
  assert.throws(() => decodeWindow(whole.slice(0, 60)), /header is not whole/);
  assert.throws(() => decodeWindow(whole.slice(0, whole.byteLength - 20)), /cut short in column/);
  const { points: _, ...rest } = COLUMNS;
  assert.throws(() => decodeWindow(encoded(rest)), /no column points.line/);
  const wrong = { ...COLUMNS, bin_sums: { ...COLUMNS["bin_sums"], color: Uint16Array.of(4) } };
  assert.throws(() => decodeWindow(encoded(wrong)), /bin_sums.color is of type u2, not u1/);
});
