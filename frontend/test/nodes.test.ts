// The tree of ranges in a report: where its nodes lie, at which width, and what is too narrow.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Tree, WHOLE, type Columns } from "../src/shared/nodes";

//        step 100 (gpu 40)
//   data 60 (0) | forward 30 (40)
//               | attn 10 (25) | 3 smaller 5 (15)
const COLUMNS: Columns = {
  names: ["step", "data", "forward", "attn"],
  name: [0, 1, 2, 3, -1],
  parent: [-1, 0, 0, 2, 2],
  calls: [1, 2, 2, 4, 9],
  host: [100, 60, 30, 10, 5],
  gpu: [40, 0, 40, 25, 15],
  smaller: [0, 0, 0, 0, 3],
};

const placed = (root: number, measure: "host" | "gpu", least = 0.001): string[] =>
  new Tree(COLUMNS)
    .layout(root, measure, least)
    .map(({ node, row, left, width }) => `${new Tree(COLUMNS).name(node)} ${row} ${left.toFixed(2)}+${width.toFixed(2)}`);

test("nodes lie within their parents, the widest first", () => {
  assert.deepEqual(placed(WHOLE, "host"), [
    "step 0 0.00+1.00",
    "data 1 0.00+0.60",
    "forward 1 0.60+0.30",
    "attn 2 0.60+0.10",
    "3 smaller 2 0.70+0.05",
  ]);
});

test("another measure gives other widths and another order", () => {
  assert.deepEqual(placed(WHOLE, "gpu"), [
    "step 0 0.00+1.00",
    "forward 1 0.00+1.00",
    "attn 2 0.00+0.63",
    "3 smaller 2 0.63+0.38",
  ]);
});

test("a node that is zoomed into is as wide as all, below what it lies in", () => {
  assert.deepEqual(placed(2, "host"), [
    "step 0 0.00+1.00",
    "forward 1 0.00+1.00",
    "attn 2 0.00+0.33",
    "3 smaller 2 0.33+0.17",
  ]);
  const above = new Tree(COLUMNS).layout(2, "host", 0).filter((one) => one.above);
  assert.deepEqual(above.map((one) => one.node), [0]);
});

test("what is too narrow to be seen is left out, with all that is narrower", () => {
  assert.deepEqual(placed(WHOLE, "host", 0.08), ["step 0 0.00+1.00", "data 1 0.00+0.60", "forward 1 0.60+0.30", "attn 2 0.60+0.10"]);
});

test("without GPU times there is nothing to lay out by them", () => {
  const tree = new Tree({ ...COLUMNS, gpu: null });
  assert.deepEqual(tree.layout(WHOLE, "gpu", 0), []);
  assert.equal(tree.value(WHOLE, "host"), 100);
  assert.equal(tree.size, 5);
});
