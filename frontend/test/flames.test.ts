import assert from "node:assert/strict";
import { test } from "node:test";
import { trackChoices } from "../src/timeline/app/flames";
import { trackOf } from "./pane_windows";

test("a flame graph is of a GPU, a stream or a thread", () => {
  const host = { group: "python (pid 1)", thread: "python (1)" };
  const tracks = [
    trackOf({ key: "gpu0/ledger", kind: "ledger" }),
    trackOf({ key: "gpu0/stream7", name: "Stream 7" }),
    trackOf({ key: "gpu0/memory", kind: "memory", series: true }),
    trackOf({ ...host, key: "p0/t0/ranges", kind: "ranges" }),
    trackOf({ ...host, key: "p0/t0/api", kind: "api" }),
    trackOf({ group: "Host", key: "host/memory", kind: "memory", series: true }),
  ];
  assert.deepEqual(trackChoices(tracks), [
    ["gpu0/ledger", "GPU 0"], ["gpu0/stream7", "GPU 0 · Stream 7"], ["p0/t0/ranges", "python (pid 1) · python (1)"],
  ]);
});
