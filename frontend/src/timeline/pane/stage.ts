// Where things are on the screen: sizes, scrolling, and the frames that are drawn.

import { formatTime } from "../../shared/format";
import type { Spot, TimeRange } from "../types";
import { type Layout, lineTop, placeOf } from "./layout";
import { OverviewPainter } from "./overview";
import { Painter } from "./paint";
import { paintRuler, rulerHeight } from "./ruler";
import { resized, type Scene } from "./scene";
import type { Skeleton } from "./skeleton";
import { exactTime, scaleBar } from "./ticks";
import { spanOf } from "./viewport";

/** How far the canvas reaches beyond what is seen, so that scrolling shows no edge. */
const BEYOND = 160;
const OVERVIEW_HEIGHT = 44;
/** Room for the length that stands at the scale bar, and for the gaps round it. */
const SCALE_TEXT = 74;
/** Room for the time under the pointer. */
const FLAG_ROOM = 110;

/** A place: its time, its pixels from the tracks' upper left, and from the pane's. */
export interface At {
  readonly time_ns: number;
  readonly x: number;
  readonly y: number;
  readonly paneX: number;
  readonly paneY: number;
}
/** The canvas begins at multiples of this, which are whole pixels on any usual screen. */
const GRID = 4;

export class Stage {
  /** Size of the tracks' part of the screen, in CSS pixels. */
  width = 1;
  height = 1;
  private readonly painter = new Painter();
  private readonly overview = new OverviewPainter();
  private top = 0;
  private overviewWidth = 1;
  private scaleRoom = 1;
  /** Where the pane is in the window, and where in it the tracks begin. */
  private origin = { x: 0, y: 0 };
  private left = 0;
  private bodyTop = 0;
  private scrolled = 0;
  private contentHeight = 1;

  constructor(readonly parts: Skeleton, private readonly limits: TimeRange) {}

  /** Look how large everything is now. */
  measure(): void {
    this.width = Math.max(1, Math.floor(this.parts.area.clientWidth));
    this.height = Math.max(1, this.parts.body.clientHeight);
    this.locate();
    this.scaleRoom = Math.max(20, this.parts.scale.clientWidth - SCALE_TEXT);
    this.contentHeight = Math.max(this.parts.content.offsetHeight, this.height);
    this.noteScroll();
    // Where there is no room for its caption, the overview takes the whole width.
    this.overviewWidth = this.parts.caption.offsetWidth ? this.width : Math.max(1, this.parts.root.clientWidth);
  }

  /** Device pixels from left to right. */
  get pixels(): number {
    return Math.max(1, Math.round(this.width * (window.devicePixelRatio || 1)));
  }

  /** Heights of the layout that are on the canvas. */
  get span(): { readonly top: number; readonly bottom: number } {
    return { top: this.top, bottom: this.top + this.canvasHeight(this.contentHeight) };
  }

  /** Time and height of the layout at a place of the window, and the place in the pane. */
  at(view: TimeRange, event: MouseEvent): At {
    const x = event.clientX - this.origin.x - this.left;
    const y = event.clientY - this.origin.y - this.bodyTop + this.scrolled;
    const time_ns = view.start_ns + (x / this.width) * spanOf(view);
    return { time_ns, x, y, paneX: event.clientX - this.origin.x, paneY: event.clientY - this.origin.y };
  }

  /** Look where the pane is; to be called when the pointer comes in, not for every frame. */
  locate(): void {
    const [root, area, body] = [this.parts.root, this.parts.area, this.parts.body].map((part) => part.getBoundingClientRect());
    this.origin = { x: root?.left ?? 0, y: root?.top ?? 0 };
    this.left = (area?.left ?? 0) - this.origin.x;
    this.bodyTop = (body?.top ?? 0) - this.origin.y;
  }

  /** Whether a height of the layout is seen: what is scrolled off lies under the ruler. */
  shows(y: number): boolean {
    return y >= this.scrolled;
  }

  /** Make room for another layout. */
  arrange(layout: Layout): void {
    this.parts.content.style.height = `${layout.height}px`;
  }

  /** Whether what is seen has been scrolled off the canvas, or nearly. */
  get isOutside(): boolean {
    const { top, bottom } = this.span;
    const spare = BEYOND / 4;
    const above = top > 0 && this.scrolled < top + spare;
    const below = bottom < this.contentHeight && this.scrolled + this.height > bottom - spare;
    return above || below;
  }

  /** Take note of how far it has been scrolled; reading that in a frame would lay the page out. */
  noteScroll(): void {
    this.scrolled = this.parts.body.scrollTop;
  }

  paint(scene: Scene): void {
    const height = this.canvasHeight(this.contentHeight);
    const most = Math.max(0, this.contentHeight - height);
    const wanted = Math.min(Math.max(0, this.scrolled - BEYOND), most);
    this.top = Math.floor(wanted / GRID) * GRID;
    const surface = resized(this.parts.canvas, this.width, height);
    this.painter.paint(surface, scene, this.top);
    this.parts.canvas.style.top = `${this.top}px`;
    this.paintTop(scene);
  }

  private paintTop(scene: Scene): void {
    paintRuler(resized(this.parts.ruler, this.width, rulerHeight(scene.info.steps)), scene);
    this.overview.paint(resized(this.parts.overview, this.overviewWidth, OVERVIEW_HEIGHT), scene, this.limits);
    this.showScale(scene.view);
  }

  /** A bar of a round length, and how much is shown. */
  private showScale(view: TimeRange): void {
    const [bar, length, shown] = this.parts.scale.children;
    const { pixels, text } = scaleBar(spanOf(view) / this.width, this.scaleRoom);
    if (bar instanceof HTMLElement) bar.style.width = `${pixels}px`;
    say(length, text);
    say(shown, `${formatTime(spanOf(view))} shown`);
  }

  /** Line and flag of the time under the pointer; null hides them. */
  showCursor(scene: Scene, x: number | null): void {
    const { cursor, flag } = this.parts;
    cursor.hidden = flag.hidden = x === null || x < 0 || x > this.width;
    if (x === null) return;
    cursor.style.transform = `translateX(${Math.round(this.left + x)}px)`;
    const perPixel = spanOf(scene.view) / this.width;
    say(flag, exactTime(scene.view.start_ns + x * perPixel, perPixel));
    const right = x > this.width - FLAG_ROOM; // there it stands to the left of its line
    flag.style.transform = `translateX(${Math.round(this.left + x)}px)${right ? " translateX(-100%)" : ""}`;
  }

  /** An outline round a range of a line; null hides it. */
  showHover(scene: Scene, spot: Pick<Spot, "start_ns" | "end_ns" | "track" | "line"> | null): void {
    const { hover } = this.parts;
    const place = spot && placeOf(scene.layout, spot.track, spot.line);
    hover.hidden = !place;
    if (!spot || !place) return;
    const perNs = this.width / spanOf(scene.view);
    const left = Math.max(-4, (spot.start_ns - scene.view.start_ns) * perNs);
    const right = Math.min(this.width + 4, (spot.end_ns - scene.view.start_ns) * perNs);
    hover.style.transform = `translate(${left}px, ${lineTop(place.row, place.line)}px)`;
    hover.style.width = `${Math.max(2, right - left)}px`;
    hover.style.height = `${place.row.lineHeight}px`;
  }

  /** Scroll so that a line is seen. */
  reveal(layout: Layout, track: string, line: number): void {
    const place = placeOf(layout, track, line);
    if (place === null) return;
    const { body } = this.parts;
    this.noteScroll();
    const top = lineTop(place.row, place.line);
    const seen = top >= this.scrolled + 30 && top + place.row.lineHeight <= this.scrolled + this.height - 10;
    if (!seen) body.scrollTop = top - this.height / 3;
    this.noteScroll();
  }

  private canvasHeight(content: number): number {
    return Math.min(content, this.height + 2 * BEYOND);
  }
}

/** Change a text only where it is another one, as every change makes the browser lay the page out. */
function say(element: Element | undefined, text: string): void {
  if (element && element.textContent !== text) element.textContent = text;
}
