import assert from "node:assert/strict";
import { test } from "node:test";
import { foldedAtFirst } from "../src/timeline/pane/layout";
import { neighbor } from "../src/timeline/panels/ranks";
import { trackOf } from "./pane_windows";

const grid = { rows: [1, 2, 3], steps: [1, 2, 3, 4] };

test("arrow keys move in the heat map and stop at its edges", () => {
  assert.deepEqual(neighbor("ArrowDown", 0, 1, grid), { row: 1, column: 1 });
  assert.deepEqual(neighbor("ArrowLeft", 1, 1, grid), { row: 1, column: 0 });
  assert.deepEqual(neighbor("End", 1, 1, grid), { row: 1, column: 3 });
  assert.equal(neighbor("ArrowUp", 0, 1, grid), null);
  assert.equal(neighbor("ArrowRight", 0, 3, grid), null);
  assert.equal(neighbor("a", 0, 0, grid), null);
});

test("of each rank of a job, the GPU with its busiest streams is unfolded, and nothing else", () => {
  const tracks = [0, 1].flatMap((rank) => [
    trackOf({ key: `gpu${rank}/ledger`, group: `Rank ${rank}`, kind: "ledger" }),
    trackOf({ key: `gpu${rank}/stream1`, group: `Rank ${rank}` }),
    trackOf({ key: `gpu${rank}/stream2`, group: `Rank ${rank}`, thread: "Other streams" }),
    trackOf({ key: `gpu${rank}/stream3`, group: `Rank ${rank}`, thread: "Other streams" }),
    trackOf({ key: `p${rank}/t0/api`, group: `Rank ${rank} · python`, kind: "api", thread: "python" }),
  ]);
  assert.equal(foldedAtFirst(tracks).size, 0);
  assert.deepEqual([...foldedAtFirst(tracks, true)].sort(), [
    "group Rank 0 · python", "group Rank 1 · python", "section Rank 0 Other streams", "section Rank 1 Other streams",
  ]);
});
