// Requests what is missing: one request at a time, soon but not at every twitch, the newest first.

import type { Client, WindowRequest } from "../client";
import type { TimeRange } from "../types";
import type { Store } from "./store";
import { spanOf } from "./viewport";

/** What the screen shows now. */
export interface Shown {
  readonly view: TimeRange;
  /** Device pixels from left to right. */
  readonly pixels: number;
  /** Tracks on the screen or just beyond it. */
  readonly tracks: readonly string[];
  /** Tracks of which the whole capture is wanted as well. */
  readonly whole: readonly string[];
}

const SETTLE_MS = 25;
/** How long to wait after a failure: at first, and at most after several. */
const RETRY_MS = { first: 1500, most: 20_000 };
/** Tracks in one request; the others follow. */
const MOST_TRACKS = 96;

export class Loader {
  private timer: number | undefined;
  private retry_ms = RETRY_MS.first;
  private stopped = false;
  private flying: { readonly request: WindowRequest; readonly abort: AbortController } | null = null;

  constructor(
    private readonly client: Client,
    private readonly capture: number,
    private readonly store: Store,
    private readonly shown: () => Shown,
    private readonly on: { arrived: () => void; rested: () => void; failed: (why: string) => void },
  ) {}

  /** Something else is shown: request what it lacks, soon. */
  wake(): void {
    if (this.flying && isUseless(this.flying.request, this.shown())) this.flying.abort.abort();
    if (this.timer === undefined && !this.flying) this.later(SETTLE_MS);
  }

  /** Drop what is under way, as it was requested before the data changed. */
  again(): void {
    this.flying?.abort.abort();
  }

  stop(): void {
    this.stopped = true;
    window.clearTimeout(this.timer);
    this.flying?.abort.abort();
  }

  private later(wait_ms: number): void {
    if (this.stopped) return;
    this.timer = window.setTimeout(() => {
      this.timer = undefined;
      void this.ask();
    }, wait_ms);
  }

  private async ask(): Promise<void> {
    const request = this.next();
    if (request === null) return this.on.rested();
    const abort = new AbortController();
    this.flying = { request, abort };
    try {
      this.store.add(await this.client.window(this.capture, request, abort.signal), request.tracks);
      this.flying = null;
      this.retry_ms = RETRY_MS.first;
      this.on.arrived();
      this.later(0);
    } catch (error) {
      this.flying = null;
      if (abort.signal.aborted) return this.later(0);
      this.on.failed(error instanceof Error ? error.message : String(error));
      this.later(this.retry_ms);
      this.retry_ms = Math.min(2 * this.retry_ms, RETRY_MS.most);
    }
  }

  private next(): WindowRequest | null {
    const { view, pixels, tracks, whole } = this.shown();
    const request = this.store.missing(view, pixels, tracks) ?? this.store.missingWhole(whole);
    return request && { ...request, tracks: request.tracks.slice(0, MOST_TRACKS) };
  }
}

/** Whether a response under way would not even be a better picture than none. */
function isUseless(request: WindowRequest, { view }: Shown): boolean {
  const apart = request.end_ns <= view.start_ns || request.start_ns >= view.end_ns;
  return apart || spanOf(request) * 8 < spanOf(view);
}
