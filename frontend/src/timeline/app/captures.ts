// The captures that are served, and what is known of each by now.

import type { Client } from "../client";
import type { CaptureInfo, CaptureState, Findings, LedgerInfo, Overview } from "../types";
import { poll } from "./polling";

/** One capture: being read, ready or failed; findings and ledger come later than its timeline. */
export interface Capture {
  readonly id: number;
  readonly name: string;
  state: CaptureState;
  info: CaptureInfo | null;
  findings: Findings | null;
  ledger: LedgerInfo | null;
}

/** What of a capture became known. */
export type News = "state" | "info" | "findings" | "ledger";

type Listener = (capture: Capture, news: News) => void;
type Palette = Overview["palette"];

/** Polls everything until it is final, and notifies its listeners. */
export class Captures {
  all: readonly Capture[] = [];
  palette: Palette = {};
  private readonly listeners: Listener[] = [];

  constructor(private readonly client: Client) {}

  on(listener: Listener): void {
    this.listeners.push(listener);
  }

  /** `listed` is called when the names are known, and when a file turns out to have no timeline of its own. */
  async follow(listed: () => void): Promise<void> {
    await poll(
      () => this.client.overview(),
      (overview) => this.take(overview, listed),
      (overview) => overview.captures.every((capture) => capture.state !== "reading"),
    );
  }

  private take(overview: Overview, listed: () => void): void {
    this.palette = overview.palette;
    const ids = (list: readonly { id: number }[]): string => list.map((capture) => capture.id).join();
    if (ids(this.all) !== ids(overview.captures)) {
      this.all = overview.captures.map((state) => this.byId(state.id) ?? fresh(state));
      listed();
    }
    for (const state of overview.captures) this.update(state);
  }

  byId(id: number): Capture | undefined {
    return this.all.find((capture) => capture.id === id);
  }

  private update(state: CaptureState): void {
    const capture = this.byId(state.id);
    if (!capture) return;
    const before = capture.state;
    capture.state = state;
    if (before.state !== state.state || before.message !== state.message) this.notify(capture, "state");
    if (state.state === "ready" && before.state !== "ready") void this.load(capture);
  }

  private async load(capture: Capture): Promise<void> {
    const { client } = this;
    await poll(
      () => client.capture(capture.id),
      (info) => this.learn(capture, "info", () => (capture.info = info)),
      () => true,
    );
    void poll(
      () => client.ledger(capture.id),
      (ledger) => this.learn(capture, "ledger", () => (capture.ledger = ledger)),
      (ledger) => ledger.state !== "computing",
    );
    void poll(
      () => client.findings(capture.id),
      (findings) => this.learn(capture, "findings", () => (capture.findings = findings)),
      (findings) => findings.state !== "computing",
    );
  }

  private learn(capture: Capture, news: News, keep: () => void): void {
    keep();
    this.notify(capture, news);
  }

  private notify(capture: Capture, news: News): void {
    for (const listener of this.listeners) listener(capture, news);
  }
}

/** As one that was just named: the state of the server comes later. */
function fresh(state: CaptureState): Capture {
  const reading: CaptureState = { ...state, state: "reading", message: "" };
  return { id: state.id, name: state.name, state: reading, info: null, findings: null, ledger: null };
}

/** Names of GPUs in few words: `8 × NVIDIA H200`. */
export function gpuNames(gpus: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of gpus) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${count} × ${name}` : name)).join(", ");
}
