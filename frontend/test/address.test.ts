import assert from "node:assert/strict";
import { test } from "node:test";
import { type Place, readAddress, writeAddress } from "../src/timeline/app/address";

const PLAIN: Place = { capture: 0, view: { start_ns: 1000, end_ns: 2000 }, event: null, mark: null };
const FULL: Place = {
  capture: 1,
  view: { start_ns: -500, end_ns: 9_007_199_254 },
  event: { table: "kernels", row: 17 },
  mark: { start_ns: 5, end_ns: 6 },
};

test("what is written is read again", () => {
  assert.equal(writeAddress([PLAIN]), "#c=0&t=1000-2000");
  assert.deepEqual(readAddress(writeAddress([PLAIN])), [PLAIN]);
  assert.deepEqual(readAddress(writeAddress([FULL, PLAIN])), [FULL, PLAIN]);
});

test("times are whole and hold what is shown", () => {
  const view = { start_ns: 10.7, end_ns: 20.2 };
  assert.equal(writeAddress([{ ...PLAIN, view }]), "#c=0&t=10-21");
});

test("what makes no sense is left out", () => {
  assert.deepEqual(readAddress(""), []);
  assert.deepEqual(readAddress("#t=1-2"), []);
  assert.deepEqual(readAddress("#c=x&t=1-2"), []);
  const bare = [{ capture: 0, view: null, event: null, mark: null }];
  for (const rest of ["t=2-1", "t=1e3-5", "t=NaN-5", "e=<b>:1", "e=kernels:-1", "m=", "c=-1", "q=%"]) {
    assert.deepEqual(readAddress(`#c=0&${rest}`), bare, rest);
  }
});
