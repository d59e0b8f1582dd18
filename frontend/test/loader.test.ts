import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import type { Client, WindowRequest } from "../src/timeline/client";
import { Loader, type Shown } from "../src/timeline/pane/loader";
import { Store } from "../src/timeline/pane/store";
import type { TimelineWindow } from "../src/timeline/types";
import { windowOf } from "./pane_windows";

const capture = { start_ns: 0, end_ns: 1e9 };
const screen = (start_ns: number, end_ns: number, tracks = ["a"]): Shown => ({ view: { start_ns, end_ns }, pixels: 1000, tracks, whole: [] });

/** A server that answers when it is told to. */
class Server {
  asked: WindowRequest[] = [];
  private answers: (() => void)[] = [];
  private failures: ((why: Error) => void)[] = [];

  readonly client = {
    window: (_: number, asked: WindowRequest, signal: AbortSignal) => {
      this.asked.push(asked);
      return new Promise<TimelineWindow>((answer, fail) => {
        this.answers.push(() => answer(windowOf(asked.start_ns, asked.end_ns, asked.bins, [])));
        this.failures.push(fail);
        signal.addEventListener("abort", () => fail(new Error("aborted")));
      });
    },
  } as unknown as Client;

  async answer(): Promise<void> {
    this.answers.pop()?.();
    await settled();
  }

  async fail(): Promise<void> {
    this.failures.pop()?.(new Error("gone"));
    await settled();
  }
}

/** Let promises that are done go on. */
async function settled(): Promise<void> {
  for (let turn = 0; turn < 8; turn++) await Promise.resolve();
}

async function pass(ms: number): Promise<void> {
  mock.timers.tick(ms);
  await settled();
}

let shown: Shown;
let server: Server;
let heard: string[];
let loader: Loader;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  Object.assign(globalThis, { window: globalThis });
  shown = screen(400e6, 500e6);
  server = new Server();
  heard = [];
  const on = { arrived: () => heard.push("arrived"), rested: () => heard.push("rested"), failed: (why: string) => heard.push(why) };
  loader = new Loader(server.client, 0, new Store(capture), () => shown, on);
});

test("many changes become one request, soon after the first", async () => {
  for (let change = 0; change < 10; change++) loader.wake();
  await pass(24);
  assert.equal(server.asked.length, 0);
  await pass(1);
  assert.equal(server.asked.length, 1);
});

test("one request is under way at a time; what is shown then is asked for next", async () => {
  loader.wake();
  await pass(25);
  shown = screen(440e6, 450e6);
  loader.wake();
  await pass(100);
  assert.equal(server.asked.length, 1);
  await server.answer();
  await pass(0);
  assert.equal(server.asked.length, 2);
  assert.ok((server.asked[1]?.start_ns ?? 0) <= 440e6 && (server.asked[1]?.end_ns ?? 0) < 470e6);
});

test("an answer that would show nothing of the screen is not waited for", async () => {
  loader.wake();
  await pass(25);
  shown = screen(900e6, 950e6);
  loader.wake();
  await settled();
  await pass(0);
  assert.equal(server.asked.length, 2);
  assert.ok((server.asked[1]?.start_ns ?? 0) > 800e6);
  assert.deepEqual(heard, []);
});

test("what was asked for before the answer changed is asked for anew", async () => {
  loader.wake();
  await pass(25);
  loader.again();
  await settled();
  await pass(0);
  assert.equal(server.asked.length, 2);
  assert.deepEqual(server.asked[1], server.asked[0]);
  assert.deepEqual(heard, []);
});

test("it rests once everything is there", async () => {
  loader.wake();
  await pass(25);
  await server.answer();
  await pass(0);
  assert.deepEqual(heard, ["arrived", "rested"]);
  loader.wake();
  await pass(25);
  assert.equal(server.asked.length, 1);
});

test("after a failure it asks again, ever more patiently", async () => {
  loader.wake();
  await pass(25);
  await server.fail();
  assert.deepEqual(heard, ["gone"]);
  await pass(1500);
  assert.equal(server.asked.length, 2);
  await server.fail();
  await pass(1500);
  assert.equal(server.asked.length, 2);
  await pass(1500);
  assert.equal(server.asked.length, 3);
});

test("once stopped it asks for nothing any more", async () => {
  loader.wake();
  await pass(25);
  loader.stop();
  await settled();
  await pass(60_000);
  assert.equal(server.asked.length, 1);
});
