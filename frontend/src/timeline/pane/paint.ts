// A frame of the tracks: background, lines, series, then what lies over them.

import type { Track } from "../types";
import type { Pixel } from "./colors";
import { Columns } from "./columns";
import { lineTop, type Row, rowsWithin } from "./layout";
import { LinePainter, Matches, type Strip } from "./lines";
import { FONT_SIZE, paintMark, paintScale, paintSelection, Writer } from "./overlay";
import { Raster } from "./raster";
import type { Scene, Surface } from "./scene";
import { paintSeries } from "./series";
import type { Piece } from "./store";
import { type Ticks, ticksOf } from "./ticks";
import { Scale, spanOf } from "./viewport";

/** Room between ticks in CSS pixels, on wide and on narrow screens. */
const TICK_ROOM = { wide: 96, narrow: 68, narrowBelow: 480 };

/** Ticks of what is shown, as far apart as their texts need. */
export function ticksShown({ width, ratio }: Surface, { view }: Scene): Ticks {
  const room = width / ratio < TICK_ROOM.narrowBelow ? TICK_ROOM.narrow : TICK_ROOM.wide;
  return ticksOf(view, (room * ratio * spanOf(view)) / width);
}

/** Draws the tracks on one canvas; keeps its memory and the widths of names between frames. */
export class Painter {
  private raster = new Raster(1, 1);
  private columns = new Columns(1);
  private writer: Writer | null = null;
  private matches = new Matches("");

  /** Draw what stands from `top` on, in CSS pixels of the whole layout. */
  paint(surface: Surface, scene: Scene, top: number): void {
    this.prepare(surface, scene);
    const scale = new Scale(scene.view, surface.width);
    const rows = rowsWithin(scene.layout, top, top + surface.height / surface.ratio);
    this.paintGround(surface, scene, scale, rows, top);
    const lines = new LinePainter(this.raster, scale, surface.ratio, scene.theme, this.matches, this.columns);
    for (const row of rows) this.paintRow(surface, scene, scale, lines, row, top);
    this.raster.show(surface.context);
    this.writer?.write(lines.writings);
    for (const row of rows) if (row.track) this.paintWords(surface, scene, row, row.track, top);
    paintMark(surface, scene, scale);
    paintSelection(surface, scene, scale, top);
  }

  private prepare({ width, height, context, ratio }: Surface, { theme, filter }: Scene): void {
    if (this.raster.width !== width || this.raster.height !== height) this.raster = new Raster(width, height);
    if (this.columns.width !== width) this.columns = new Columns(width);
    if (this.matches.filter !== filter) this.matches = new Matches(filter);
    const font = `${FONT_SIZE * ratio}px ${theme.font}`;
    if (this.writer?.font !== font) this.writer = new Writer(context, font, ratio);
  }

  /** Paper with the grid, bands of headings, and lines between tracks. */
  private paintGround(surface: Surface, scene: Scene, scale: Scale, rows: readonly Row[], top: number): void {
    const { raster } = this;
    const { theme } = scene;
    raster.repeat(groundRow(surface, scene, scale), 0, surface.height);
    for (const row of rows) {
      const y = Math.round((row.top - top) * surface.ratio);
      const bottom = Math.round((row.top + row.height - top) * surface.ratio);
      if (row.kind !== "track") raster.rect(0, y, surface.width, bottom, groundOf(row, scene));
      raster.rect(0, bottom - Math.round(surface.ratio), surface.width, bottom, theme.line);
    }
  }

  private paintRow(
    surface: Surface, scene: Scene, scale: Scale, lines: LinePainter, row: Row, top: number,
  ): void {
    const { track } = row;
    if (track === null) return;
    const pieces = scene.store.pieces(track.key, scene.view, surface.width);
    if (track.series) return this.paintChart(surface, scene, scale, row, track, pieces, top);
    for (let line = 0; line < row.lines; line++) {
      const strip = stripOf(row, track, line, top, surface.ratio);
      if (strip.bottom > 0 && strip.top < surface.height) lines.paint(track.key, line, pieces, strip);
    }
  }

  private paintChart(
    surface: Surface, scene: Scene, scale: Scale, row: Row, track: Track, pieces: readonly Piece[], top: number,
  ): void {
    const y = lineTop(row, 0) - top;
    const chart = {
      top: Math.round((y + 2) * surface.ratio),
      bottom: Math.round((y + row.lineHeight) * surface.ratio),
      high: track.high || 1,
      color: scene.theme.series[track.kind === "memory" ? "memory" : "metric"],
      paper: scene.theme.paper,
      thick: Math.max(1, Math.round(surface.ratio)),
    };
    for (let line = 0; line < Math.max(1, track.lines); line++) {
      paintSeries(this.raster, scale, track.key, line, pieces, { ...chart, outline: line > 0 });
    }
  }

  private paintWords(surface: Surface, scene: Scene, row: Row, track: Track, top: number): void {
    if (track.series) paintScale(surface, scene, row, top);
    if (!scene.store.isPending(track.key) || row.folded) return;
    const { context, ratio } = surface;
    context.font = `${11 * ratio}px ${scene.theme.font}`;
    context.fillStyle = scene.theme.css.muted;
    context.fillText("Computing …", 8 * ratio, (row.top - top + row.lineHeight / 2 + 4) * ratio);
  }
}

/** One row of the ground: paper, lines of the grid, and what lies before and after the capture. */
function groundRow(surface: Surface, scene: Scene, scale: Scale): Uint32Array {
  const { theme, info } = scene;
  const { width, ratio } = surface;
  const inside = (x: number): number => Math.min(Math.max(0, x), width);
  const made = new Uint32Array(width).fill(theme.paper);
  made.fill(theme.band, 0, inside(scale.pixel(info.start_ns)));
  made.fill(theme.band, inside(scale.pixel(info.end_ns) + 1));
  for (const { time_ns } of ticksShown(surface, scene).at) {
    const x = scale.pixel(time_ns);
    made.fill(theme.grid, inside(x), inside(x + Math.max(1, Math.round(ratio))));
  }
  return made;
}

function groundOf(row: Row, { theme }: Scene): Pixel {
  return row.kind === "group" ? theme.band : theme.section;
}

/** A line's place: a pixel stays free below it; folded ones are thin. */
function stripOf(row: Row, track: Track, line: number, top: number, ratio: number): Strip {
  const y = lineTop(row, line) - top;
  const thin = row.folded;
  return {
    top: Math.round((y + (thin ? 4 : 1)) * ratio),
    bottom: Math.round((y + row.lineHeight - (thin ? 4 : 0)) * ratio),
    filled: track.kind === "ledger",
    named: !thin,
  };
}
