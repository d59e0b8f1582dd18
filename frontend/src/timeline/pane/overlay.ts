// What lies over the events: names, the selection with its links, the selected range, scales of series.

import { formatBytes, formatReal, formatTime } from "../../shared/format";
import type { Spot, TimeRange, Track } from "../types";
import { INKS } from "./colors";
import { lineTop, placeOf, type Row } from "./layout";
import type { Writing } from "./lines";
import type { Scene, Surface } from "./scene";
import { Fitter } from "./text";
import type { Scale } from "./viewport";

/** Size of names on slices, in CSS pixels. */
export const FONT_SIZE = 11;
const MORE_GAP = 8;

/** A rectangle in device pixels. */
interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
}

/** Writes names; one for each font and screen, as it remembers their widths. */
export class Writer {
  private readonly fitter: Fitter;

  constructor(private readonly context: CanvasRenderingContext2D, readonly font: string, private readonly ratio: number) {
    this.fitter = new Fitter((text) => context.measureText(text).width);
  }

  /** Write all names, ink by ink: changing the ink is what costs. */
  write(writings: readonly Writing[]): void {
    const { context } = this;
    context.font = this.font;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    INKS.forEach((ink, index) => {
      context.fillStyle = ink;
      const alike = writings.filter((writing) => writing.ink === index);
      for (const writing of alike) this.name(writing);
      context.globalAlpha = 0.75;
      for (const writing of alike) this.more(writing);
      context.globalAlpha = 1;
    });
  }

  private name({ text, brief, left, middle, room }: Writing): void {
    const shown = this.fitter.width(text) <= room ? text : this.fitter.fit(brief, room);
    if (shown) this.context.fillText(shown, left, this.base(middle));
  }

  private more({ text, more, left, middle, room }: Writing): void {
    const used = this.fitter.width(text) + MORE_GAP * this.ratio;
    if (used + this.fitter.width(more) <= room) this.context.fillText(more, left + used, this.base(middle));
  }

  private base(middle: number): number {
    return Math.round(middle + FONT_SIZE * this.ratio * 0.36);
  }
}

/** Draw the selected range over all rows. */
export function paintMark({ context, width, height, ratio }: Surface, scene: Scene, scale: Scale): void {
  if (scene.mark === null) return;
  const [left, right] = edges(scene.mark, scale);
  context.fillStyle = scene.theme.css.mark;
  context.globalAlpha = 0.13;
  context.fillRect(Math.max(0, left), 0, Math.min(width, right) - Math.max(0, left), height);
  context.globalAlpha = 1;
  for (const x of [left, right]) context.fillRect(x, 0, Math.round(ratio), height);
}

const edges = (range: TimeRange, scale: Scale): [number, number] =>
  [scale.pixel(range.start_ns), Math.max(scale.pixel(range.end_ns), scale.pixel(range.start_ns) + 1)];

/** Outline the selected event, and draw arrows to what belongs to it. */
export function paintSelection(surface: Surface, scene: Scene, scale: Scale, top: number): void {
  if (scene.selection === null) return;
  const box = boxOf(surface, scene, scale, top, scene.selection);
  for (const spot of scene.links) {
    const other = boxOf(surface, scene, scale, top, spot);
    if (!box || !other || other.top === box.top) continue; // a neighbor of its line needs no arrow
    outline(surface, scene, other, 1);
    if (!encloses(spot, scene.selection) || onOtherRank(scene, spot, scene.selection)) paintLink(surface, scene, box, other);
  }
  if (box) outline(surface, scene, box, 2);
}

function outline({ context, ratio, width }: Surface, { theme }: Scene, box: Box, thick: number): void {
  const line = Math.round(thick * ratio);
  const [left, right] = [Math.max(box.left, -2 * line), Math.min(box.right, width + 2 * line)];
  context.lineWidth = line + 2 * Math.round(ratio);
  context.strokeStyle = theme.css.paper;
  context.strokeRect(left, box.top, Math.max(right - left, 1), box.bottom - box.top);
  context.lineWidth = line;
  context.strokeStyle = theme.css.text;
  context.strokeRect(left, box.top, Math.max(right - left, 1), box.bottom - box.top);
}

/** What an event lies within is seen to be round it. */
const encloses = (outer: TimeRange, inner: TimeRange): boolean =>
  outer.start_ns <= inner.start_ns && outer.end_ns >= inner.end_ns;

/** Of a job, the same event of another rank: it is not round this one, however long it lasts. */
function onOtherRank({ info }: Scene, one: Spot, other: Spot): boolean {
  const group = (spot: Spot): string | undefined => info.tracks.find((track) => track.key === spot.track)?.group;
  return info.job && one.table === other.table && group(one) !== group(other);
}

function paintLink(surface: Surface, scene: Scene, box: Box, other: Box): void {
  const { context, ratio } = surface;
  const [first, second] = box.left <= other.left ? [box, other] : [other, box];
  const down = first.top < second.top;
  const from = { x: first.left, y: down ? first.bottom : first.top };
  const to = { x: second.left, y: down ? second.top : second.bottom };
  const bend = Math.min(60 * ratio, Math.abs(to.y - from.y) / 2 + 8 * ratio) * (down ? 1 : -1);
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.bezierCurveTo(from.x, from.y + bend, to.x, to.y - bend, to.x, to.y);
  stroke(context, scene.theme.css.paper, 3.5 * ratio);
  stroke(context, scene.theme.css.accent, 1.5 * ratio);
  arrowHead(context, to, down ? 1 : -1, 5 * ratio, scene.theme.css.accent);
}

function stroke(context: CanvasRenderingContext2D, color: string, thick: number): void {
  context.strokeStyle = color;
  context.lineWidth = thick;
  context.stroke();
}

function arrowHead(
  context: CanvasRenderingContext2D, tip: { x: number; y: number }, way: number, size: number, color: string,
): void {
  context.beginPath();
  context.moveTo(tip.x, tip.y);
  context.lineTo(tip.x - size * 0.7, tip.y - way * size);
  context.lineTo(tip.x + size * 0.7, tip.y - way * size);
  context.closePath();
  context.fillStyle = color;
  context.fill();
}

function boxOf({ ratio }: Surface, scene: Scene, scale: Scale, top: number, spot: Spot): Box | null {
  const place = placeOf(scene.layout, spot.track, spot.line);
  if (place === null) return null;
  // Far beyond the screen is no further than a screen away, lest lines are too long to be drawn.
  const [left, right] = edges(spot, scale).map((x) => Math.min(Math.max(x, -scale.width), 2 * scale.width)) as [number, number];
  const above = lineTop(place.row, place.line) - top;
  const bottom = above + place.row.lineHeight - 1;
  return { left, right, top: Math.round(above * ratio), bottom: Math.round(bottom * ratio) };
}

/** Write what the top of a series stands for, at the right. */
export function paintScale({ context, width, ratio }: Surface, scene: Scene, row: Row, top: number): void {
  const { track } = row;
  if (track === null || row.folded || track.high === null) return;
  context.font = `${10 * ratio}px ${scene.theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  const text = valueText(track, track.high);
  const [x, y] = [width - 6 * ratio, (row.top - top + 11) * ratio];
  context.lineWidth = 3 * ratio;
  context.lineJoin = "round";
  context.strokeStyle = scene.theme.css.paper;
  context.strokeText(text, x, y);
  context.fillStyle = scene.theme.css.muted;
  context.fillText(text, x, y);
  context.textAlign = "left";
}

/** A value of a series as text. */
export function valueText(track: Track, value: number): string {
  if (track.unit === "bytes") return formatBytes(value);
  if (track.unit === "ns") return formatTime(value);
  if (track.unit === "Hz") return `${formatReal(value / 1e6)} MHz`;
  return track.unit === "%" ? `${formatReal(value)}%` : `${formatReal(value)} ${track.unit}`.trim();
}
