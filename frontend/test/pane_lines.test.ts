import assert from "node:assert/strict";
import { test } from "node:test";
import { dragged, gripAt } from "../src/timeline/pane/brush";
import { mixed, pixelOf, wantsDarkInk } from "../src/timeline/pane/colors";
import { Columns } from "../src/timeline/pane/columns";
import { Held } from "../src/timeline/pane/held";
import { hitAt } from "../src/timeline/pane/hit";
import { layOut } from "../src/timeline/pane/layout";
import { stepAt, stepBeside, stepName, stepsWithin } from "../src/timeline/pane/ruler";
import type { Scene } from "../src/timeline/pane/scene";
import { Store } from "../src/timeline/pane/store";
import { Fitter } from "../src/timeline/pane/text";
import { wordsOf } from "../src/timeline/pane/words";
import { Scale } from "../src/timeline/pane/viewport";
import type { CaptureInfo } from "../src/timeline/types";
import { type GivenLine, trackOf, windowOf } from "./pane_windows";

const capture = { start_ns: 0, end_ns: 1000 };
const track = trackOf({ key: "t", name: "Stream 7" });
const line: GivenLine = { slices: [[100, 200, "gemm"], [300, 500, "relu"]], bins: [[60, 5, 2], [61, 10, 37], [80, 0, 1]] };

function sharesOf(given: GivenLine, view: { start_ns: number; end_ns: number }, width: number): number[] {
  const held = new Held(windowOf(0, 1000, 100, [given]), ["t"]).line("t", 0);
  assert.ok(held);
  const columns = new Columns(width);
  const scale = new Scale(view, width);
  columns.addBins(held, view, scale, () => undefined);
  columns.addSlices(held, view, scale, Infinity);
  return [...columns.share];
}

test("busy time is neither lost nor made, however many pixels there are", () => {
  for (const width of [7, 10, 100, 333, 1000]) {
    const busy = sharesOf(line, capture, width).reduce((sum, share) => sum + (share * 1000) / width, 0);
    assert.ok(Math.abs(busy - 315) < 0.01, `${busy} in ${width} pixels`);
  }
});

test("each pixel has the share of its own time", () => {
  const shares = sharesOf({ slices: [[100, 150]], bins: [[90, 4, 1]] }, capture, 10);
  assert.deepEqual(shares.map((share) => Number(share.toFixed(3))), [0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0.04]);
});

test("only what lies in the stretch is counted", () => {
  const shares = sharesOf(line, { start_ns: 150, end_ns: 350 }, 200);
  assert.equal(shares.slice(0, 50).every((share) => share === 1), true);
  assert.equal(shares.slice(50, 150).every((share) => share === 0), true);
});

test("what has no length is told of as a mark", () => {
  const held = new Held(windowOf(0, 1000, 100, [line]), ["t"]).line("t", 0);
  const marks: number[] = [];
  if (held) new Columns(100).addBins(held, capture, new Scale(capture, 100), (x) => marks.push(x));
  assert.deepEqual(marks, [80]);
});

function sceneOf(given: GivenLine, view = capture, shown = track): Scene {
  const store = new Store(capture);
  store.add(windowOf(0, 1000, 100, [given]), ["t"]);
  return { store, view, layout: layOut([shown], new Set()) } as unknown as Scene;
}

const Y = 30;

test("the pointer finds the event that it is on, and its place in the table", () => {
  const hit = hitAt(sceneOf(line), 150, Y, 1000);
  assert.deepEqual(hit?.target, {
    kind: "event",
    spot: { table: "kernels", row: 0, start_ns: 100, end_ns: 200, track: "t", line: 0, name: "gemm" },
    color: 0,
  });
  assert.equal(hitAt(sceneOf(line), 250, Y, 1000)?.target, null);
});

test("near an event is on it, where there is nothing else", () => {
  const found = hitAt(sceneOf(line), 202, Y, 1000)?.target;
  assert.equal(found?.kind === "event" && found.spot.row, 0);
});

test("a sum tells how many events and how busy", () => {
  const scene = sceneOf(line);
  const hit = hitAt(scene, 615, Y, 1000);
  assert.deepEqual(hit?.target, { kind: "bin", start_ns: 610, end_ns: 620, count: 37, busy: 1, color: 0 });
  const info = { start_ns: 0, colors: ["compute/matmul"] } as unknown as CaptureInfo;
  assert.ok(hit);
  const blue = { light: "#0000ff", dark: "#8888ff" };
  assert.deepEqual(wordsOf(hit, info, { "compute/matmul": blue }), {
    lines: ["37 events, 100.0% busy", "within 10 ns", "Stream 7"], color: { text: "mostly compute: matmul", ...blue },
  });
});

test("the color of a name means nothing more, that of a kind is told", () => {
  const hit = hitAt(sceneOf(line), 150, Y, 1000);
  assert.ok(hit);
  const pair = { light: "#000000", dark: "#ffffff" };
  const told = (key: string) => wordsOf(hit, { colors: [key] } as unknown as CaptureInfo, { [key]: pair })?.color?.text;
  assert.deepEqual([told("compute/matmul"), told("host/3")], ["compute: matmul", undefined]);
});

test("a series tells its value, or the last one before", () => {
  const memory = trackOf({ key: "t", kind: "memory", series: true, unit: "bytes", high: 2e9 });
  const scene = sceneOf({ points: [[10, 1e9], [40, 2e9]] }, capture, memory);
  const value = (time: number) => {
    const found = hitAt(scene, time, Y, 1000)?.target;
    return found?.kind === "values" ? found.lines[0]?.mean : null;
  };
  assert.deepEqual([value(50), value(105), value(390), value(400), value(999)], [null, 1e9, 1e9, 2e9, 2e9]);
});

test("headings hold nothing", () => assert.equal(hitAt(sceneOf(line), 150, 5, 1000), null));

test("names are cut to what fits", () => {
  const fitter = new Fitter((text) => [...text].length * 10);
  assert.equal(fitter.fit("kernel", 60), "kernel");
  assert.equal(fitter.fit("kernel", 59), "kern…");
  assert.equal(fitter.fit("kernel", 20), "");
  assert.equal(fitter.fit("😀😀😀😀", 35), "😀😀…");
});

test("ink is the one that can be read", () => {
  assert.ok(wantsDarkInk(pixelOf("#ffffff")) && wantsDarkInk(pixelOf("#efc067")));
  assert.ok(!wantsDarkInk(pixelOf("#000000")) && !wantsDarkInk(pixelOf("#5a4fb0")));
  assert.equal(pixelOf("rgb(47, 107, 179)"), pixelOf("#2f6bb3"));
  assert.equal(mixed(pixelOf("#000000"), pixelOf("#ff8000"), 0.5), pixelOf("#804000"));
  assert.throws(() => pixelOf("red"), /Not a color/);
});

test("edges are gripped near them, the middle where it can be moved", () => {
  const scale = new Scale(capture, 1000);
  const range = { start_ns: 200, end_ns: 400 };
  const grips = (movable: boolean) => [195, 300, 403, 600].map((x) => gripAt(scale, range, x, movable));
  assert.deepEqual(grips(true), ["start", "whole", "end", "new"]);
  assert.deepEqual(grips(false), ["start", "new", "end", "new"]);
  assert.equal(gripAt(scale, null, 300, true), "new");
});

test("a drag moves what was gripped; an edge may pass the other", () => {
  const before = { start_ns: 200, end_ns: 400 };
  assert.deepEqual(dragged("new", before, 700, 600), { start_ns: 600, end_ns: 700 });
  assert.deepEqual(dragged("whole", before, 300, 350), { start_ns: 250, end_ns: 450 });
  assert.deepEqual(dragged("end", before, 400, 500), { start_ns: 200, end_ns: 500 });
  assert.deepEqual(dragged("start", before, 200, 450), { start_ns: 400, end_ns: 450 });
});

test("a step is called as its range, with a number and whether it warms up", () => {
  const named = (name: string, number: number, warmup = false) => stepName({ name, number, warmup, start_ns: 0, end_ns: 1 });
  assert.deepEqual(
    [named("step_7", 7), named("train", 7), named("", 7), named("step_0", 0, true)],
    ["step_7", "train 7", "Step 7", "step_0 (warm-up)"],
  );
});

test("steps are found by what is shown", () => {
  const steps = [0, 1, 2, 3].map((number) => {
    return { number, name: `step ${number}`, start_ns: number * 100, end_ns: number * 100 + 90, warmup: number === 0 };
  });
  const numbers = (start_ns: number, end_ns: number) => stepsWithin(steps, { start_ns, end_ns }).map((step) => step.number);
  assert.deepEqual([numbers(0, 1000), numbers(95, 99), numbers(50, 150), numbers(900, 950)], [[0, 1, 2, 3], [], [0, 1], []]);
  assert.deepEqual([0, 95, 389, 390].map((time_ns) => stepAt(steps, time_ns)?.number), [0, undefined, 3, undefined]);
  const beside = (start_ns: number, end_ns: number) =>
    ([-1, 1] as const).map((direction) => stepBeside(steps, { start_ns, end_ns }, direction)?.number);
  assert.deepEqual([beside(100, 190), beside(190, 200), beside(-50, -10), beside(300, 390)], [[0, 2], [1, 2], [undefined, 0], [2, undefined]]);
});
