import assert from "node:assert/strict";
import { test } from "node:test";
import {
  foldedAtFirst, groupKey, HEIGHTS, layOut, lineAt, lineTop, placeOf, rowAt, rowsWithin, sectionKey,
} from "../src/timeline/pane/layout";
import { trackOf } from "./pane_windows";

const stream = trackOf({ key: "gpu0/stream7" });
const memory = trackOf({ key: "gpu0/memory", kind: "memory", series: true, lines: 2 });
const host = { group: "python (pid 1)", thread: "python (1)" };
const ranges = trackOf({ ...host, key: "t1/ranges", kind: "ranges", name: "NVTX", lines: 3 });
const api = trackOf({ ...host, key: "t1/api", kind: "api", name: "CUDA API" });
const alone = trackOf({ group: "python (pid 1)", thread: "worker (2)", key: "t2/os", kind: "os", name: "OS calls" });
const tracks = [stream, memory, ranges, api, alone];

test("rows follow each other without gaps, below their headings", () => {
  const { rows, height } = layOut(tracks, new Set());
  assert.deepEqual(rows.map((row) => [row.kind, row.name]), [
    ["group", "GPU 0"], ["track", "gpu0/stream7"], ["track", "gpu0/memory"],
    ["group", "python (pid 1)"], ["section", "python (1)"], ["track", "NVTX"], ["track", "CUDA API"],
    ["track", "worker (2) · OS calls"],
  ]);
  let top = 0;
  for (const row of rows) {
    assert.equal(row.top, top);
    top += row.height;
  }
  assert.equal(height, top);
  assert.deepEqual(rows[5]?.parents, [groupKey(ranges), sectionKey(ranges)]);
});

test("lines have their heights; a series is one chart, however many lines it has", () => {
  const height = (key: string) => layOut(tracks, new Set()).rows.find((row) => row.key === key)?.height;
  assert.equal(height("gpu0/stream7"), HEIGHTS.stream + HEIGHTS.gap);
  assert.equal(height("t1/ranges"), 3 * HEIGHTS.line + HEIGHTS.gap);
  assert.equal(height("gpu0/memory"), HEIGHTS.series + HEIGHTS.gap);
});

test("a folded track is one thin line, a folded heading stands for what is below it", () => {
  const { rows } = layOut(tracks, new Set(["t1/ranges", groupKey(stream)]));
  assert.deepEqual(rows.map((row) => row.key), [
    groupKey(stream), groupKey(ranges), sectionKey(ranges), "t1/ranges", "t1/api", "t2/os",
  ]);
  assert.equal(rows[0]?.track, stream);
  assert.deepEqual([rows[3]?.lines, rows[3]?.lineHeight], [1, HEIGHTS.folded]);
});

test("each height belongs to one row and line", () => {
  const layout = layOut(tracks, new Set());
  for (const row of layout.rows) {
    assert.equal(rowAt(layout, row.top), row);
    assert.equal(rowAt(layout, row.top + row.height - 0.01), row);
    for (let line = 0; row.track && line < row.lines; line++) {
      assert.equal(lineAt(row, lineTop(row, line)), line);
      assert.equal(lineAt(row, lineTop(row, line) + row.lineHeight - 0.01), line);
    }
  }
  assert.equal(rowAt(layout, -1), undefined);
  assert.equal(rowAt(layout, layout.height), undefined);
});

test("headings and gaps are no line", () => {
  const layout = layOut(tracks, new Set());
  const [heading, track] = layout.rows;
  assert.ok(heading && track);
  assert.equal(lineAt(heading, heading.top + 5), null);
  assert.equal(lineAt(track, track.top + track.height - 1), null);
});

test("only rows that are seen are asked for", () => {
  const layout = layOut(tracks, new Set());
  const [first, second, third] = layout.rows;
  assert.ok(first && second && third);
  assert.deepEqual(rowsWithin(layout, second.top + 1, third.top - 1), [second]);
  assert.deepEqual(rowsWithin(layout, 0, 1e6), layout.rows);
});

test("an event is found on its line, or nowhere where that is folded away", () => {
  const open = layOut(tracks, new Set());
  assert.deepEqual([placeOf(open, "t1/ranges", 2)?.row.key, placeOf(open, "t1/ranges", 2)?.line], ["t1/ranges", 2]);
  assert.equal(placeOf(open, "t1/ranges", 3), null);
  const shut = layOut(tracks, new Set(["t1/ranges"]));
  assert.equal(placeOf(shut, "t1/ranges", 0)?.line, 0);
  assert.equal(placeOf(shut, "t1/ranges", 1), null);
});

test("what is secondary and deep or one of many is folded at first", () => {
  const python = trackOf({ ...host, key: "t1/python", kind: "python", lines: 40 });
  const metrics = Array.from({ length: 9 }, (_, index) => trackOf({ key: `m${index}`, kind: "metric", series: true, high: index }));
  const folded = foldedAtFirst([stream, ...metrics, ranges, api, python]);
  assert.deepEqual([...folded].sort(), ["m0", sectionKey(metrics[0] as typeof stream), "t1/python"].sort());
  const { rows } = layOut([stream, ...metrics], folded);
  assert.deepEqual(rows.map((row) => [row.name, row.track?.key]), [["GPU 0", undefined], ["gpu0/stream7", "gpu0/stream7"], ["GPU metrics", undefined]]);
  assert.equal(foldedAtFirst(tracks).size, 0);
});

test("of many threads and streams the first are open", () => {
  const streams = Array.from({ length: 40 }, (_, index) => trackOf({ key: `s${index}` }));
  const threads = Array.from({ length: 300 }, (_, index) => index).flatMap((index) => {
    const thread = { group: "python (pid 1)", thread: `worker ${index}` };
    return [trackOf({ ...thread, key: `${index}/api`, kind: "api" }), trackOf({ ...thread, key: `${index}/os`, kind: "os" })];
  });
  const folded = foldedAtFirst([...streams, ...threads]);
  assert.equal(streams.filter((one) => folded.has(one.key)).length, 28);
  assert.ok(!folded.has(sectionKey(threads[0] as typeof stream)));
  assert.ok(folded.has(sectionKey(threads[599] as typeof stream)));
});
