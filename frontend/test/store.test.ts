import assert from "node:assert/strict";
import { test } from "node:test";
import { cover, MOST_BINS, roundBin, Store, windowFor } from "../src/timeline/pane/store";
import { spanOf } from "../src/timeline/pane/viewport";
import { windowOf } from "./pane_windows";

const capture = { start_ns: 0, end_ns: 1e9 };
const view = { start_ns: 400e6, end_ns: 500e6 };
const PIXELS = 1000;

/** What the server would answer, without events. */
function answer(store: Store, asked: ReturnType<Store["missing"]>): void {
  assert.ok(asked);
  store.add(windowOf(asked.start_ns, asked.end_ns, asked.bins, []), asked.tracks);
}

test("bins are whole nanoseconds of a few sizes", () => {
  const sizes: [number, number][] = [[0.01, 1], [1.9, 1], [2, 2], [3.5, 3], [5, 4], [7, 6], [100_000, 98_304]];
  for (const [most, size] of sizes) assert.equal(roundBin(most), size);
});

test("a window reaches beyond the screen, has a bin for each pixel, and not too many", () => {
  for (const pixels of [200, 1000, 3000, 8000]) {
    const asked = windowFor(view, pixels, capture);
    assert.ok(asked.start_ns <= 360e6 && asked.end_ns >= 540e6);
    assert.ok(asked.bins <= MOST_BINS && Number.isInteger(asked.bins));
    if (pixels <= 1000) assert.ok(spanOf(asked) / asked.bins <= spanOf(view) / pixels);
  }
});

test("neighboring windows have the same bins", () => {
  const [one, other] = [windowFor(view, PIXELS, capture), windowFor({ start_ns: 401e6, end_ns: 501e6 }, PIXELS, capture)];
  const bin_ns = spanOf(one) / one.bins;
  assert.equal(bin_ns, spanOf(other) / other.bins);
  assert.equal(Math.abs(one.start_ns - other.start_ns) % bin_ns, 0);
});

test("a window stays near the capture, and is never empty", () => {
  const asked = windowFor({ start_ns: -1e7, end_ns: 1.01e9 }, PIXELS, capture);
  const block = (spanOf(asked) / asked.bins) * 64;
  assert.ok(asked.start_ns > -block && asked.end_ns < 1e9 + block);
  const instant = windowFor({ start_ns: 0, end_ns: 50 }, PIXELS, { start_ns: 7, end_ns: 7 });
  assert.ok(instant.bins >= 1 && instant.end_ns > instant.start_ns);
});

test("what is there is not asked for again", () => {
  const store = new Store(capture);
  answer(store, store.missing(view, PIXELS, ["a", "b"]));
  assert.equal(store.missing(view, PIXELS, ["a", "b"]), null);
  assert.deepEqual(store.missing(view, PIXELS, ["a", "c"])?.tracks, ["c"]);
  const beside = { start_ns: 410e6, end_ns: 510e6 };
  assert.equal(store.missing(beside, PIXELS, ["a"]), null, "a little panning is covered");
  assert.ok(store.missing({ start_ns: 490e6, end_ns: 590e6 }, PIXELS, ["a"]), "more is not");
  assert.ok(store.missing({ start_ns: 440e6, end_ns: 450e6 }, PIXELS, ["a"]), "nor is a closer look");
});

test("the whole capture is asked for once for each track", () => {
  const store = new Store(capture);
  answer(store, store.missing(view, PIXELS, ["a"]));
  const whole = store.missingWhole(["a", "b"]);
  assert.deepEqual([whole?.start_ns, whole?.end_ns, whole?.tracks], [0, 1e9, ["a", "b"]]);
  answer(store, whole);
  assert.equal(store.missingWhole(["a", "b"]), null);
});

test("tracks that pend are not asked for until refreshed", () => {
  const store = new Store(capture);
  const asked = store.missing(view, PIXELS, ["ledger"]);
  assert.ok(asked);
  store.add({ ...windowOf(asked.start_ns, asked.end_ns, asked.bins, []), pending: ["ledger"] }, asked.tracks);
  assert.ok(store.isPending("ledger"));
  assert.equal(store.missing(view, PIXELS, ["ledger"]), null);
  assert.deepEqual(store.pieces("ledger", view, PIXELS), []);
  store.refresh();
  assert.deepEqual(store.missing(view, PIXELS, ["ledger"])?.tracks, ["ledger"]);
});

test("after a refresh, what was there is drawn until the answer comes", () => {
  const store = new Store(capture);
  answer(store, store.missing(view, PIXELS, ["a"]));
  const [before] = store.pieces("a", view, PIXELS);
  store.refresh();
  assert.equal(store.pieces("a", view, PIXELS)[0]?.held, before?.held);
  answer(store, store.missing(view, PIXELS, ["a"]));
  assert.notEqual(store.pieces("a", view, PIXELS)[0]?.held, before?.held);
});

test("drawing takes the best of what is there, and fills the rest from coarser windows", () => {
  const store = new Store(capture);
  answer(store, store.missingWhole(["a"]));
  answer(store, store.missing(view, PIXELS, ["a"]));
  const [only, ...none] = store.pieces("a", view, PIXELS);
  assert.deepEqual([none.length, only?.start_ns, only?.end_ns], [0, 400e6, 500e6]);
  const wider = { start_ns: 320e6, end_ns: 570e6 };
  const pieces = store.pieces("a", wider, PIXELS);
  assert.equal(pieces.length, 3);
  assert.deepEqual([pieces[0]?.start_ns, pieces[2]?.end_ns], [320e6, 570e6]);
  assert.ok((pieces[1]?.held.bin_ns ?? 0) < (pieces[0]?.held.bin_ns ?? 0));
});

test("a cover has no gaps where something is there, and no overlaps", () => {
  const there = [{ start_ns: 0, end_ns: 60, bad: 2 }, { start_ns: 20, end_ns: 40, bad: 1 }, { start_ns: 50, end_ns: 90, bad: 3 }];
  const made = cover({ start_ns: 10, end_ns: 100 }, there, (one) => one.bad);
  assert.deepEqual(made.map((piece) => [piece.start_ns, piece.end_ns, piece.held.bad]), [
    [10, 20, 2], [20, 40, 1], [40, 60, 2], [60, 90, 3],
  ]);
});

test("of many windows the last are kept, and those of the whole capture", () => {
  const store = new Store(capture);
  answer(store, store.missingWhole(["a"]));
  for (let index = 0; index < 60; index++) {
    const place = { start_ns: index * 10e6, end_ns: index * 10e6 + 1e6 };
    answer(store, store.missing(place, PIXELS, ["a"]));
  }
  assert.ok(store.missing({ start_ns: 0, end_ns: 1e6 }, PIXELS, ["a"]), "the first is gone");
  assert.equal(store.missing({ start_ns: 590e6, end_ns: 591e6 }, PIXELS, ["a"]), null);
  assert.equal(store.missingWhole(["a"]), null);
});
