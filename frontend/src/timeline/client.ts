// The server's responses, typed. Addresses are relative: the token stands in the page's own.

import { decodeWindow } from "./decode";
import type {
  CaptureInfo, CompareInfo, EventDetails, Findings, FlameInfo, LedgerInfo, Measure, Overview, RanksInfo, SearchResult, Spot,
  TimeRange, TimelineWindow,
} from "./types";

/** What is to be shown: some tracks over a time range. */
export interface WindowRequest extends TimeRange {
  readonly bins: number;
  readonly tracks: readonly string[];
}

type Query = Readonly<Record<string, string | number>>;

/** Sends requests; every call takes a signal that aborts it. */
export class Client {
  constructor(private readonly base = "api") {}

  overview(signal?: AbortSignal): Promise<Overview> {
    return this.json("captures", {}, signal);
  }

  capture(id: number, signal?: AbortSignal): Promise<CaptureInfo> {
    return this.json(`captures/${id}`, {}, signal);
  }

  async window(id: number, request: WindowRequest, signal?: AbortSignal): Promise<TimelineWindow> {
    const query = { ...stretch(request), bins: request.bins, tracks: request.tracks.join(",") };
    const answer = await this.get(`captures/${id}/window`, query, signal);
    return decodeWindow(await answer.arrayBuffer());
  }

  /** The event on a line at a time, or the nearest within so many nanoseconds. */
  pick(
    id: number, track: string, line: number, time_ns: number, within_ns: number, signal?: AbortSignal,
  ): Promise<Spot | null> {
    const query = { track, line, time: Math.round(time_ns), within: Math.ceil(within_ns) };
    return this.json(`captures/${id}/pick`, query, signal);
  }

  event(id: number, table: string, row: number, signal?: AbortSignal): Promise<EventDetails> {
    return this.json(`captures/${id}/event`, { table, row }, signal);
  }

  search(id: number, q: string, limit = 200, signal?: AbortSignal): Promise<SearchResult> {
    return this.json(`captures/${id}/search`, { q, limit }, signal);
  }

  /** The next event of that name after a time, or the one before it; wraps around. */
  next(
    id: number, table: string, code: number, time_ns: number, direction: 1 | -1, signal?: AbortSignal,
  ): Promise<Spot | null> {
    return this.json(`captures/${id}/next`, { table, code, time: Math.round(time_ns), direction }, signal);
  }

  measure(id: number, range: TimeRange, signal?: AbortSignal): Promise<Measure> {
    return this.json(`captures/${id}/measure`, stretch(range), signal);
  }

  /** Stacks of a time range as a flame graph, of all tracks or one. */
  flame(
    id: number, range: TimeRange, of: string, by: string, track: string, signal?: AbortSignal,
  ): Promise<FlameInfo> {
    return this.json(`captures/${id}/flame`, { of, by, track, ...stretch(range) }, signal);
  }

  findings(id: number, signal?: AbortSignal): Promise<Findings> {
    return this.json(`captures/${id}/findings`, {}, signal);
  }

  ledger(id: number, signal?: AbortSignal): Promise<LedgerInfo> {
    return this.json(`captures/${id}/ledger`, {}, signal);
  }

  compare(signal?: AbortSignal): Promise<CompareInfo> {
    return this.json("compare", {}, signal);
  }

  /** All ranks of a job. */
  ranks(id: number, signal?: AbortSignal): Promise<RanksInfo> {
    return this.json(`captures/${id}/ranks`, {}, signal);
  }

  /** The longest collective of a rank in a time range; null for none. */
  collective(id: number, rank: number, range: TimeRange, signal?: AbortSignal): Promise<Spot | null> {
    return this.json(`captures/${id}/collective`, { rank, ...stretch(range) }, signal);
  }

  private async json<T>(path: string, query: Query, signal?: AbortSignal): Promise<T> {
    const answer = await this.get(path, query, signal);
    return (await answer.json()) as T;
  }

  private async get(path: string, query: Query, signal?: AbortSignal): Promise<Response> {
    const text = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)])).toString();
    const address = `${this.base}/${path}${text && `?${text}`}`;
    const answer = await fetch(address, signal ? { signal } : {});
    if (!answer.ok) throw new Error(await reason(answer));
    return answer;
  }
}

/** The server counts whole nanoseconds. */
function stretch(range: TimeRange): { start: number; end: number } {
  const start = Math.floor(range.start_ns);
  return { start, end: Math.max(start + 1, Math.ceil(range.end_ns)) };
}

/** Errors come as `{"error": one line}`; anything else, such as of a stopped server, has its status. */
async function reason(answer: Response): Promise<string> {
  const plain = `The server responded ${answer.status} ${answer.statusText}`.trim();
  if (!answer.headers.get("content-type")?.startsWith("application/json")) return plain;
  const message = ((await answer.json()) as { error?: unknown }).error;
  return typeof message === "string" ? message : plain;
}
