// The whole capture in one strip: how busy each GPU is, and a brush over what is shown.

import type { CaptureInfo, TimeRange, Track } from "../types";
import { Columns } from "./columns";
import type { Held } from "./held";
import { groupKey } from "./layout";
import { Raster } from "./raster";
import type { Scene, Surface } from "./scene";
import type { Theme } from "./theme";
import { Scale } from "./viewport";

/** Streams of a GPU that are looked at; they stand in order of their time. */
const MOST_STREAMS = 8;
const MOST_GPUS = 16;

type Lanes = readonly (readonly Track[])[];

const known = new WeakMap<CaptureInfo, Lanes>();

/** Tracks that show the utilization: the streams of each GPU, or where there is none, the track with most events. */
export function overviewTracks(info: CaptureInfo): Lanes {
  const before = known.get(info);
  if (before) return before;
  const lanes = lanesOf(info);
  known.set(info, lanes);
  return lanes;
}

function lanesOf(info: CaptureInfo): Lanes {
  const groups = new Map<string, Track[]>();
  for (const track of info.tracks.filter((track) => track.kind === "stream")) {
    groups.set(groupKey(track), [...(groups.get(groupKey(track)) ?? []), track]);
  }
  if (groups.size) return [...groups.values()].slice(0, MOST_GPUS).map((streams) => streams.slice(0, MOST_STREAMS));
  const events = info.tracks.filter((track) => !track.series && track.kind !== "ledger");
  const most = Math.max(...events.map((track) => track.events));
  return events.filter((track) => track.events === most).slice(0, 1).map((track) => [track]);
}

/** What the strip shows, in words. */
export function overviewText(info: CaptureInfo): string {
  const [first] = overviewTracks(info);
  if (first === undefined) return "nothing to show";
  if (first[0]?.kind !== "stream") return `${first[0]?.name ?? ""} over time`;
  return first.length > 1 ? "utilization of the busiest stream" : "GPU utilization";
}

/** The strip, drawn again only when something came, changed its size or its colors. */
export class OverviewPainter {
  private raster: Raster | null = null;
  private drawn = "";
  private helds: readonly (Held | undefined)[] = [];
  private theme: Theme | null = null;

  paint(surface: Surface, scene: Scene, limits: TimeRange): void {
    const lanes = overviewTracks(scene.info);
    const helds = lanes.flat().map((track) => scene.store.whole(track.key));
    const size = `${surface.width}×${surface.height}`;
    if (this.raster === null || this.drawn !== size || this.theme !== scene.theme || !same(helds, this.helds)) {
      this.raster = drawLanes(surface, scene, lanes, limits);
      [this.drawn, this.theme, this.helds] = [size, scene.theme, helds];
    }
    this.raster.show(surface.context);
    paintBrush(surface, scene, new Scale(limits, surface.width));
  }
}

const same = (one: readonly unknown[], other: readonly unknown[]): boolean =>
  one.length === other.length && one.every((value, index) => value === other[index]);

function drawLanes(surface: Surface, scene: Scene, lanes: Lanes, limits: TimeRange): Raster {
  const raster = new Raster(surface.width, surface.height);
  raster.pixels.fill(scene.theme.paper);
  const scale = new Scale(limits, surface.width);
  const inner = surface.height - 4 * surface.ratio;
  lanes.forEach((lane, index) => {
    const top = Math.round(2 * surface.ratio + (index * inner) / lanes.length);
    const bottom = Math.round(2 * surface.ratio + ((index + 1) * inner) / lanes.length) - (lanes.length > 1 ? 1 : 0);
    const { full, tint } = scene.theme.shades;
    const place = { top, bottom, least: Math.round(surface.ratio), full, tint };
    const columns = busiest(lane, scene, scale, surface.width);
    if (columns) raster.read(top, columns.row);
    columns?.paint(raster, place);
  });
  return raster;
}

/** Column by column the busiest of some tracks. */
function busiest(lane: readonly Track[], scene: Scene, scale: Scale, width: number): Columns | null {
  const made = lane.flatMap((track) => {
    const held = scene.store.whole(track.key);
    return held ? [columnsOf(track, held, scene.info, scale, width)] : [];
  });
  const [first, ...others] = made;
  others.forEach((other) => first?.keepBusier(other));
  return first ?? null;
}

function columnsOf(track: Track, held: Held, capture: TimeRange, scale: Scale, width: number): Columns {
  const columns = new Columns(width);
  for (let line = 0; line < Math.max(1, track.lines); line++) {
    const data = held.line(track.key, line);
    if (!data) continue;
    columns.addBins(data, capture, scale, () => undefined);
    columns.addSlices(data, capture, scale, Infinity);
  }
  return columns;
}

function paintBrush({ context, width, height, ratio }: Surface, { theme, view, mark }: Scene, scale: Scale): void {
  const [left, right] = [scale.pixel(view.start_ns), Math.max(scale.pixel(view.end_ns), scale.pixel(view.start_ns) + 2)];
  context.fillStyle = theme.css.paper;
  context.globalAlpha = 0.62;
  context.fillRect(0, 0, left, height);
  context.fillRect(right, 0, width - right, height);
  context.globalAlpha = 1;
  if (mark) paintMarked(context, theme, scale, mark, height);
  const thin = Math.max(1, Math.round(ratio));
  context.fillStyle = theme.css.accent;
  context.fillRect(left, 0, right - left, thin);
  context.fillRect(left, height - thin, right - left, thin);
  for (const [x, way] of [[left, 1], [right, -1]] as const) paintHandle(context, theme, x, way, height, ratio);
}

function paintMarked(context: CanvasRenderingContext2D, theme: Theme, scale: Scale, mark: TimeRange, height: number): void {
  const [left, right] = [scale.pixel(mark.start_ns), scale.pixel(mark.end_ns)];
  context.fillStyle = theme.css.mark;
  context.globalAlpha = 0.35;
  context.fillRect(left, 0, Math.max(1, right - left), height);
  context.globalAlpha = 1;
}

function paintHandle(
  context: CanvasRenderingContext2D, theme: Theme, x: number, way: number, height: number, ratio: number,
): void {
  const [wide, high] = [4 * ratio, 18 * ratio];
  context.fillStyle = theme.css.accent;
  context.fillRect(x - ratio / 2, 0, Math.max(1, ratio), height);
  context.beginPath();
  context.roundRect(x - (way > 0 ? 0 : wide), (height - high) / 2, wide, high, 2 * ratio);
  context.fill();
}
