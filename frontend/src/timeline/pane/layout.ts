// Where the tracks stand: groups, their sections and tracks below each other, each of which can be folded.

import type { Track, TrackKind } from "../types";

/** One row: a heading of a group or of a section of it (a thread, the metrics), or a track. */
export interface Row {
  readonly kind: "group" | "section" | "track";
  /** Names it among all rows; of a track, its own key. */
  readonly key: string;
  readonly name: string;
  readonly top: number;
  readonly height: number;
  readonly folded: boolean;
  /** What is drawn in it: the track, or of a folded heading the first one with events below it. */
  readonly track: Track | null;
  /** Lines that are shown: 1 where it is folded or a series. */
  readonly lines: number;
  readonly lineHeight: number;
  /** Rows that it stands below, outermost first. */
  readonly parents: readonly string[];
  /** Tracks that it stands for. */
  readonly tracks: number;
}

export interface Layout {
  readonly rows: readonly Row[];
  readonly height: number;
}

/** Heights of rows in CSS pixels. */
export interface Heights {
  readonly group: number;
  readonly section: number;
  readonly folded: number;
  readonly line: number;
  readonly stream: number;
  readonly ledger: number;
  readonly series: number;
  /** One of many charts below each other. */
  readonly metric: number;
  /** Below the lines of a track. */
  readonly gap: number;
}

export const HEIGHTS: Heights = { group: 26, section: 20, folded: 16, line: 18, stream: 22, ledger: 30, series: 40, metric: 26, gap: 3 };
/** Where fingers point: every row can be hit. */
export const FINGER_HEIGHTS: Heights = { group: 34, section: 30, folded: 24, line: 22, stream: 26, ledger: 34, series: 44, metric: 34, gap: 4 };

/** Kinds that are for details, not to be read first. */
const SECONDARY: ReadonlySet<TrackKind> = new Set<TrackKind>(["python", "os", "metric", "overhead", "syncs"]);
const MANY = { secondary: 4, streams: 12, threads: 6, groups: 10, lines: 10 };

export const groupKey = (track: Track): string => `group ${track.group}`;
export const sectionKey = (track: Track): string => `section ${track.group} ${sectionOf(track)}`;

/** What a track stands under within its group: its thread, or for metrics their common heading. */
function sectionOf(track: Track): string {
  return track.kind === "metric" ? "GPU metrics" : track.thread;
}

/** Lay the tracks out in their order; headings and tracks whose keys are in `folded` are one thin line. */
export function layOut(tracks: readonly Track[], folded: ReadonlySet<string>, heights = HEIGHTS): Layout {
  const rows: Row[] = [];
  let top = 0;
  const add: Add = (made, lineHeight, height) => {
    const lines = made.lines * lineHeight + heights.gap;
    rows.push({ ...made, lineHeight, top, height: height ?? lines });
    top += height ?? lines;
  };
  for (const group of runs(tracks, groupKey)) addGroup(group, { folded, heights, add });
  return { rows, height: top };
}

/** Adds a row; of a track, its height is that of its lines. */
type Add = (row: Omit<Row, "top" | "height" | "lineHeight">, lineHeight: number, height?: number) => void;

interface Laying {
  readonly folded: ReadonlySet<string>;
  readonly heights: Heights;
  readonly add: Add;
}

function addGroup(group: readonly Track[], laying: Laying): void {
  const [first] = group;
  if (first === undefined) return;
  const [key, { heights }] = [groupKey(first), laying];
  const shut = laying.folded.has(key);
  laying.add(heading("group", key, first.group, shut, group, []), heights.folded, heights.group);
  if (shut) return;
  for (const section of runs(group, sectionKey)) addSection(section, [key], laying);
}

function addSection(tracks: readonly Track[], parents: readonly string[], laying: Laying): void {
  const [first] = tracks;
  if (first === undefined) return;
  const [key, name, { heights, folded }] = [sectionKey(first), sectionOf(first), laying];
  const headed = name !== "" && tracks.length > 1;
  const shut = headed && folded.has(key);
  if (headed) laying.add(heading("section", key, name, shut, tracks, parents), heights.folded, heights.section);
  if (shut) return;
  const above = headed ? [...parents, key] : parents;
  for (const track of tracks) addTrack(track, headed || track.thread === "", above, laying);
}

function addTrack(track: Track, plain: boolean, parents: readonly string[], { folded, heights, add }: Laying): void {
  const name = plain ? track.name : `${track.thread} · ${track.name}`;
  const shut = folded.has(track.key);
  const lines = shut || track.series ? 1 : Math.max(1, track.lines);
  const row = { kind: "track", key: track.key, name, folded: shut, track, lines, parents, tracks: 1 } as const;
  add(row, shut ? heights.folded : heightOf(track, heights));
}

function heading(
  kind: "group" | "section", key: string, name: string, folded: boolean, below: readonly Track[], parents: readonly string[],
): Omit<Row, "top" | "height" | "lineHeight"> {
  const shown = below.find((track) => !track.series) ?? null;
  return { kind, key, name, folded, track: folded ? shown : null, lines: 1, parents, tracks: below.length };
}

function heightOf(track: Track, heights: Heights): number {
  if (track.series) return track.kind === "metric" ? heights.metric : heights.series;
  if (track.kind === "ledger") return heights.ledger;
  return track.kind === "stream" ? heights.stream : heights.line;
}

/** Neighbors with the same key, together. */
function runs(tracks: readonly Track[], key: (track: Track) => string): Track[][] {
  const made: Track[][] = [];
  let last: string | undefined;
  for (const track of tracks) {
    if (key(track) !== last) made.push([]);
    made.at(-1)?.push(track);
    last = key(track);
  }
  return made;
}

/** What is folded at first: what is deep, or one of many, and does not answer the first question. */
export function foldedAtFirst(tracks: readonly Track[], job = false): Set<string> {
  const folded = new Set(distinct(tracks.map(groupKey)).slice(MANY.groups));
  for (const group of distinct(tracks.map(groupKey))) {
    const members = tracks.filter((track) => groupKey(track) === group);
    const threads = distinct(members.filter((track) => track.thread !== "").map(sectionKey));
    threads.slice(MANY.threads).forEach((thread) => folded.add(thread));
    for (const kind of distinct(members.map((track) => track.kind))) foldKind(members, kind, folded);
    if (job) foldRank(members, folded);
  }
  return folded;
}

const distinct = <T>(all: readonly T[]): T[] => [...new Set(all)];

function foldKind(group: readonly Track[], kind: TrackKind, folded: Set<string>): void {
  const alike = group.filter((track) => track.kind === kind);
  if (kind === "stream") alike.slice(MANY.streams).forEach((track) => folded.add(track.key));
  if (!SECONDARY.has(kind)) return;
  const many = alike.length > MANY.secondary;
  if (kind === "metric") return foldMetrics(alike, many, folded);
  alike.filter((track) => many || track.lines > MANY.lines).forEach((track) => folded.add(track.key));
}

/** Ranks are compared with each other: what all of them did on their GPUs fits on a screen. */
function foldRank(group: readonly Track[], folded: Set<string>): void {
  if (group.some((track) => track.kind === "ledger")) {
    group.filter((track) => track.thread !== "").forEach((track) => folded.add(sectionKey(track)));
  } else group.forEach((track) => folded.add(groupKey(track)));
}

/** Many metrics are folded away together; unfolded, those that are more than zeros are charts to be read. */
function foldMetrics(metrics: readonly Track[], many: boolean, folded: Set<string>): void {
  if (many) metrics.forEach((track) => folded.add(sectionKey(track)));
  metrics.filter((track) => track.high === 0).forEach((track) => folded.add(track.key));
}

/** The row at a height; undefined below the last. */
export function rowAt(layout: Layout, y: number): Row | undefined {
  if (y < 0 || y >= layout.height) return undefined;
  return layout.rows[firstBelow(layout.rows, y) - 1];
}

/** Rows that touch a range of heights. */
export function rowsWithin(layout: Layout, top: number, bottom: number): readonly Row[] {
  return layout.rows.slice(Math.max(0, firstBelow(layout.rows, top) - 1), firstBelow(layout.rows, bottom));
}

/** Position of the first row that begins after a height. */
function firstBelow(rows: readonly Row[], y: number): number {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((rows[middle]?.top ?? Infinity) > y) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The line of a row at a height, or null in the gap below its lines and in headings. */
export function lineAt(row: Row, y: number): number | null {
  if (row.track === null) return null;
  const line = Math.floor((y - lineTop(row, 0)) / row.lineHeight);
  return line >= 0 && line < row.lines ? line : null;
}

/** Where a line begins; a folded heading has its line at its foot. */
export function lineTop(row: Row, line: number): number {
  return row.kind === "track" ? row.top + line * row.lineHeight : row.top + (row.height - row.lineHeight) / 2;
}

/** Where the line of a track is drawn: in its own row, or in the folded heading that stands for it. */
export function placeOf(layout: Layout, track: string, line: number): { row: Row; line: number } | null {
  const row = layout.rows.find((row) => row.track?.key === track);
  if (row === undefined) return null;
  if (row.track?.series) return { row, line: 0 };
  return line < row.lines ? { row, line } : null;
}
