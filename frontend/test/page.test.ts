import assert from "node:assert/strict";
import { test } from "node:test";
import { gpuNames } from "../src/timeline/app/captures";
import { byKind, countOf } from "../src/timeline/app/results";
import { deviceTitle } from "../src/timeline/panels/bars";
import { tint } from "../src/timeline/panels/colors";
import type { SearchGroup } from "../src/timeline/types";

function found(kind: string, name: string, total_ns: number): SearchGroup {
  return { table: kind, kind, name, code: 0, count: 1, total_ns };
}

test("GPUs of one name are counted", () => {
  assert.equal(gpuNames([]), "");
  assert.equal(gpuNames(["NVIDIA H200"]), "NVIDIA H200");
  assert.equal(gpuNames(["H200", "H200", "L4"]), "2 × H200, L4");
});

test("a GPU is called by its number once", () => {
  assert.equal(deviceTitle({ device: 0, name: "NVIDIA H200" }), "GPU 0 · NVIDIA H200");
  assert.equal(deviceTitle({ device: 0, name: "GPU 0 · NVIDIA H200" }), "GPU 0 · NVIDIA H200");
  assert.equal(deviceTitle({ device: 3, name: "" }), "GPU 3");
});

test("names found stand by kind, the kind of the longest first", () => {
  const groups = [found("Range", "step", 9), found("Kernel", "gemm", 5), found("Range", "data", 3)];
  assert.deepEqual(byKind(groups).map((kind) => kind.map((one) => one.name)), [["step", "data"], ["gemm"]]);
});

test("the count says when not all names are shown", () => {
  const groups = [found("Kernel", "gemm", 5)];
  assert.equal(countOf({ query: "x", groups: [], total: 0 }), "No match for “x”");
  assert.equal(countOf({ query: "g", groups, total: 1 }), "1 name");
  assert.equal(countOf({ query: "g", groups, total: 1200 }), "1,200 names, top 1 by time:");
});

test("a key without a color has its group's", () => {
  const palette = {
    "compute/matmul": { light: "#111111", dark: "#222222" },
    "compute/other": { light: "#333333", dark: "#444444" },
    communication: { light: "#555555", dark: "#666666" },
  };
  assert.equal(tint(palette, "compute/matmul")["--tint-light"], "#111111");
  assert.equal(tint(palette, "compute/new")["--tint-dark"], "#444444");
  assert.equal(tint(palette, "communication")["--tint-light"], "#555555");
  assert.deepEqual(tint(palette, "unheard"), {});
});
