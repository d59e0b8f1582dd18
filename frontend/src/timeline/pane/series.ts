// Values over time: an area up to the mean, a band from the lowest to the highest.

import { mixed, type Pixel } from "./colors";
import { binAt, binStart, firstAbove, type HeldLine } from "./held";
import type { Raster } from "./raster";
import type { Piece } from "./store";
import type { Scale } from "./viewport";

/** Where a series is drawn, in device pixels, and what its top stands for. */
export interface Chart {
  readonly top: number;
  readonly bottom: number;
  readonly high: number;
  readonly color: Pixel;
  readonly paper: Pixel;
  /** An outline only, as of what is reserved over what is in use. */
  readonly outline: boolean;
  /** Thickness of lines in device pixels. */
  readonly thick: number;
}

/** Draw one series from its pieces. */
export function paintSeries(
  raster: Raster, scale: Scale, track: string, line: number, pieces: readonly Piece[], chart: Chart,
): void {
  const values = new Values(raster.width);
  for (const piece of pieces) {
    const held = piece.held.line(track, line);
    if (held) values.add(held, piece, scale);
  }
  paint(raster, values, chart);
}

/** Lowest, highest and mean value of each column of pixels. */
class Values {
  readonly low: Float64Array;
  readonly high: Float64Array;
  readonly sum: Float64Array;
  readonly weight: Float64Array;

  constructor(readonly width: number) {
    this.low = new Float64Array(width).fill(Infinity);
    this.high = new Float64Array(width).fill(-Infinity);
    this.sum = new Float64Array(width);
    this.weight = new Float64Array(width);
  }

  add(held: HeldLine, piece: Piece, scale: Scale): void {
    const { bin, low, high, mean } = held.window.points;
    const most = Math.min(this.width, scale.x(piece.end_ns));
    const start = firstAbove(bin, held.points, binAt(held.window, piece.start_ns) - 1);
    for (let at = start; at < held.points.to; at++) {
      const left = scale.x(binStart(held.window, bin[at] as number));
      if (left >= most) break;
      const right = Math.min(most, scale.x(binStart(held.window, (bin[at] as number) + 1)));
      for (let column = Math.max(0, Math.floor(left)); column < right; column++) {
        const part = Math.min(right, column + 1) - Math.max(left, column);
        this.low[column] = Math.min(this.low[column] as number, low[at] as number);
        this.high[column] = Math.max(this.high[column] as number, high[at] as number);
        this.sum[column] = (this.sum[column] as number) + part * (mean[at] as number);
        this.weight[column] = (this.weight[column] as number) + part;
      }
    }
  }
}

function paint(raster: Raster, values: Values, chart: Chart): void {
  const area = mixed(chart.paper, chart.color, 0.28);
  const band = mixed(chart.paper, chart.color, 0.55);
  const height = (value: number): number =>
    chart.bottom - Math.round(Math.min(1, Math.max(0, value / chart.high)) * (chart.bottom - chart.top - chart.thick));
  let before = NaN;
  for (let x = 0; x < values.width; x++) {
    const weight = values.weight[x] as number;
    if (weight <= 0) {
      before = NaN;
      continue;
    }
    const mean = height((values.sum[x] as number) / weight);
    if (!chart.outline) {
      raster.rect(x, mean, x + 1, chart.bottom, area);
      raster.rect(x, height(values.high[x] as number), x + 1, height(values.low[x] as number), band);
    }
    const last = Number.isNaN(before) ? mean : before;
    raster.rect(x, Math.min(mean, last) - chart.thick, x + 1, Math.max(mean, last), chart.color);
    before = mean;
  }
}
