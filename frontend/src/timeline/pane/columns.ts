// One line of the timeline, pixel by pixel: how much of each pixel's time is busy, and with what.

import type { Pixel } from "./colors";
import { binAt, binStart, firstAbove, type HeldLine } from "./held";
import type { Raster } from "./raster";
import type { TimeRange } from "../types";
import type { Scale } from "./viewport";

/** Slices narrower than this, in device pixels, count as part of the columns they lie in. */
export const NARROW = 1.5;

export class Columns {
  readonly share: Float32Array;
  readonly color: Uint8Array;
  /** Columns that anything lies in, be it of no length. */
  private readonly seen: Uint8Array;
  private readonly weight: Float32Array;
  /** Of bars that begin in the same row: the next of them. */
  private readonly next: Int32Array;
  /** The pixels of a row of the line, as far as they are the same at all heights. */
  readonly row: Uint32Array;

  constructor(readonly width: number) {
    this.share = new Float32Array(width);
    this.color = new Uint8Array(width);
    this.seen = new Uint8Array(width);
    this.weight = new Float32Array(width);
    this.next = new Int32Array(width);
    this.row = new Uint32Array(width);
  }

  clear(): void {
    this.share.fill(0);
    this.weight.fill(0);
    this.seen.fill(0);
  }

  /** Count something that lies from `left` to `right` and fills `filled` of that. */
  add(left: number, right: number, filled: number, color: number): void {
    const from = Math.max(0, Math.floor(left));
    const to = Math.min(this.width, Math.max(Math.ceil(right), from + 1));
    for (let column = from; column < to; column++) {
      const part = Math.max(0, Math.min(right, column + 1) - Math.max(left, column)) * filled;
      this.share[column] = (this.share[column] as number) + part;
      // What has no length still has a color; what has more of the column takes it over.
      if (part > (this.weight[column] as number) || this.seen[column] === 0) {
        this.weight[column] = part;
        this.color[column] = color;
      }
      this.seen[column] = 1;
    }
  }

  /** Count a line's bins within a time range; `mark` gets the positions of those of no length. */
  addBins(held: HeldLine, stretch: TimeRange, scale: Scale, mark: (x: number, color: number) => void): void {
    const { window, bins } = held;
    const { bin, busy_ns, color } = window.bin_sums;
    const bin_ns = (window.end_ns - window.start_ns) / window.bins;
    const wide = bin_ns * scale.perNs;
    const most = scale.x(stretch.end_ns);
    for (let at = firstAbove(bin, bins, binAt(window, stretch.start_ns) - 1); at < bins.to; at++) {
      const left = scale.x(binStart(window, bin[at] as number));
      if (left >= most) break;
      const busy = busy_ns[at] as number;
      const right = busy > 0 ? Math.min(left + wide, most) : left + 1; // what has no length gets no wider
      this.add(left, right, busy / bin_ns, color[at] as number);
      if (busy === 0) mark(left, color[at] as number);
    }
  }

  /** Count a line's slices within a time range, those that are narrower than `most` pixels. */
  addSlices(held: HeldLine, stretch: TimeRange, scale: Scale, most: number): void {
    const { start_ns, end_ns, color } = held.window.slices;
    for (let at = firstAbove(end_ns, held.slices, stretch.start_ns); at < held.slices.to; at++) {
      const start = start_ns[at] as number;
      if (start >= stretch.end_ns) break;
      const end = end_ns[at] as number;
      if ((end - start) * scale.perNs >= most) continue;
      const left = scale.x(Math.max(start, stretch.start_ns));
      this.add(left, scale.x(Math.min(end, stretch.end_ns)), 1, color[at] as number);
    }
  }

  /** Take over those columns of another line that are busier. */
  keepBusier(other: Columns): void {
    for (let column = 0; column < this.width; column++) {
      if (other.seen[column] === 0) continue;
      if (this.seen[column] === 1 && (other.share[column] as number) <= (this.share[column] as number)) continue;
      this.share[column] = other.share[column] as number;
      this.color[column] = other.color[column] as number;
      this.seen[column] = 1;
    }
  }

  /** Leave out the columns from `left` up to, but not including, `right`: something lies over them. */
  hide(left: number, right: number): void {
    this.seen.fill(0, left, right);
  }

  /**
   * Draw bars that stand on `bottom`, as high as their share, but `least` at least, over what `row`
   * holds. From row to row only those bars change that begin there: a row is a copy of the one above
   * it, which is what makes this quick.
   */
  paint(raster: Raster, place: Bars): void {
    const { row } = this;
    const { top, bottom, least, full, tint } = place;
    const height = bottom - top;
    const begin = new Int32Array(height + 1).fill(NONE);
    for (let column = 0; column < this.width; column++) {
      if (this.seen[column] === 0) continue;
      row[column] = tint[this.color[column] as number] as Pixel;
      const tall = Math.max(least, Math.round(Math.min(1, this.share[column] as number) * height));
      const from = Math.max(0, height - tall);
      this.next[column] = begin[from] as number;
      begin[from] = column;
    }
    for (let y = 0; y < height; y++) {
      for (let column = begin[y] as number; column !== NONE; column = this.next[column] as number) {
        row[column] = full[this.color[column] as number] as Pixel;
      }
      raster.repeat(row, top + y, top + y + 1);
    }
  }
}

/** Where bars stand, in device pixels, and their colors by color code. */
export interface Bars {
  readonly top: number;
  readonly bottom: number;
  readonly least: number;
  readonly full: ArrayLike<Pixel>;
  /** Above a bar, up to the height of a full one. */
  readonly tint: ArrayLike<Pixel>;
}

const NONE = -1;
