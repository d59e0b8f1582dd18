// One line of events: bars for what is narrow, rectangles for what is not, names where they fit.

import { formatTime } from "../../shared/format";
import type { TimelineWindow } from "../types";
import { type Columns, NARROW } from "./columns";
import { firstAbove, type HeldLine } from "./held";
import type { Raster } from "./raster";
import type { Piece } from "./store";
import type { Theme } from "./theme";
import type { Scale } from "./viewport";

/** Something to be written once the pixels are shown, in device pixels. */
export interface Writing {
  readonly text: string;
  /** What is written where not all of it fits. */
  readonly brief: string;
  /** Added in the same ink, fainter, where there is room. */
  readonly more: string;
  readonly left: number;
  readonly middle: number;
  readonly room: number;
  /** Position in INKS. */
  readonly ink: number;
}

/** Where a line is drawn, in device pixels, and how. */
export interface Strip {
  readonly top: number;
  readonly bottom: number;
  /** Whether bars fill the line whatever their share, as where time is split without remainder. */
  readonly filled: boolean;
  /** Whether names are written. */
  readonly named: boolean;
}

/** Sizes in CSS pixels. */
const LEAST_BAR = 2;
const LEAST_NAMED = 28;
const PADDING = 4;
const GAP_FROM = 4;
const DIAMOND = 4;

export class LinePainter {
  readonly writings: Writing[] = [];
  private marks: { x: number; color: number }[] = [];

  constructor(
    private readonly raster: Raster,
    private readonly scale: Scale,
    private readonly ratio: number,
    private readonly theme: Theme,
    private readonly matches: Matches,
    private readonly columns: Columns,
  ) {}

  /** Draw a line from the pieces that its track has. */
  paint(track: string, line: number, pieces: readonly Piece[], strip: Strip): void {
    this.columns.clear();
    this.marks = [];
    const lines = pieces.map((piece) => ({ piece, held: piece.held.line(track, line) }));
    for (const { piece, held } of lines) {
      if (held === undefined) continue;
      this.columns.addBins(held, piece, this.scale, this.mark);
      this.columns.addSlices(held, piece, this.scale, NARROW);
    }
    this.raster.read(Math.max(0, strip.top), this.columns.row);
    for (const { piece, held } of lines) if (held) this.paintWide(held, piece, strip);
    this.paintBars(strip);
    this.paintMarks(strip);
  }

  private readonly mark = (x: number, color: number): void => {
    this.marks.push({ x: Math.round(x), color });
  };

  private paintBars({ top, bottom, filled }: Strip): void {
    const { shades } = this.theme;
    const least = filled ? bottom - top : Math.round(LEAST_BAR * this.ratio);
    const full = this.matches.active ? shades.dim : shades.full;
    const tint = this.matches.active ? shades.faint : shades.tint;
    this.columns.paint(this.raster, { top, bottom, least, full, tint });
  }

  /** Put wide slices into the row of pixels that the whole line consists of. */
  private paintWide(held: HeldLine, piece: Piece, strip: Strip): void {
    const { start_ns, end_ns, color, label } = held.window.slices;
    const shown = this.matches.of(held.window);
    const { full, faint } = this.theme.shades;
    const [first, last] = [this.scale.pixel(piece.start_ns), this.scale.pixel(piece.end_ns)];
    for (let at = firstAbove(end_ns, held.slices, piece.start_ns); at < held.slices.to; at++) {
      const start = start_ns[at] as number;
      if (start >= piece.end_ns) break;
      const end = end_ns[at] as number;
      if ((end - start) * this.scale.perNs < NARROW) continue;
      const code = color[at] as number;
      const clear = shown === null || shown[label[at] as number] === 1;
      const left = Math.max(0, first, this.scale.pixel(start));
      const right = Math.min(this.raster.width, last, this.rightOf(start, end));
      this.columns.row.fill((clear ? full : faint)[code] as number, left, Math.max(left, right));
      this.columns.hide(left, Math.max(left, right));
      if (strip.named && clear && right - left >= LEAST_NAMED * this.ratio) {
        this.write(held.window.labels[label[at] as number] ?? "", end - start, left, right, code, strip);
      }
    }
  }

  /** Neighbors are kept apart by a pixel where they are wide enough to spare it. */
  private rightOf(start: number, end: number): number {
    const [left, right] = [this.scale.pixel(start), this.scale.pixel(end)];
    return right - left >= GAP_FROM * this.ratio ? right - Math.round(this.ratio) : Math.max(right, left + 1);
  }

  private write(text: string, ns: number, left: number, right: number, color: number, strip: Strip): void {
    const padding = PADDING * this.ratio;
    this.writings.push({
      text,
      brief: strip.filled ? text.replace(/^.*: /, "") : text,
      more: formatTime(ns),
      left: left + padding,
      middle: (strip.top + strip.bottom) / 2,
      room: right - left - 2 * padding,
      ink: this.theme.ink[color] as number,
    });
  }

  /** What has no length is a diamond where there is room for one. */
  private paintMarks({ top, bottom }: Strip): void {
    const reach = Math.round(DIAMOND * this.ratio);
    const shades = this.matches.active ? this.theme.shades.dim : this.theme.shades.full;
    const middle = Math.round((top + bottom) / 2);
    this.marks.forEach(({ x, color }, index) => {
      const before = this.marks[index - 1]?.x ?? -Infinity;
      const after = this.marks[index + 1]?.x ?? Infinity;
      if (Math.min(x - before, after - x) < reach) return;
      this.raster.diamond(x, middle, reach, shades[color] as number);
    });
  }
}

/** Which labels of a window hold the text that was searched for. */
export class Matches {
  private readonly known_lines = new WeakMap<TimelineWindow, Uint8Array>();

  constructor(readonly filter: string) {}

  get active(): boolean {
    return this.filter !== "";
  }

  /** 1 for each label that does; null where all do. */
  of(window: TimelineWindow): Uint8Array | null {
    if (!this.active) return null;
    let known = this.known_lines.get(window);
    if (known === undefined) {
      known = Uint8Array.from(window.labels, (label) => (label.toLowerCase().includes(this.filter) ? 1 : 0));
      this.known_lines.set(window, known);
    }
    return known;
  }
}
