// What a pane knows and shows: the view, the tracks and their folding, the selection, the mark. Every
// change requests a frame; frames are drawn only then.

import { THEME_CHANGED } from "../../shared/theme";
import { formatTime } from "../../shared/format";
import type { Client } from "../client";
import type { CaptureInfo, Overview, PaneEvents, Spot, TimeRange } from "../types";
import { Labels } from "./labels";
import { FINGER_HEIGHTS, foldedAtFirst, HEIGHTS, layOut, type Layout, placeOf, rowsWithin } from "./layout";
import { Loader, type Shown } from "./loader";
import { Motion } from "./motion";
import { overviewTracks } from "./overview";
import type { Scene } from "./scene";
import { buildSkeleton } from "./skeleton";
import { Stage } from "./stage";
import { Store } from "./store";
import { readTheme, type Theme } from "./theme";
import { Tooltip } from "./tooltip";
import { clamped, framed, limitsOf, spanOf } from "./viewport";

/** How a view is changed. */
export interface Moving {
  readonly smooth?: boolean;
  readonly silent?: boolean;
  /** How long a glide lasts. */
  readonly lasts_ms?: number;
}

/** An event that is revealed takes this share of the screen, unless it can be seen well already. */
const REVEALED = 0.3;
const SEEN_PX = 4;

export class Core {
  readonly limits: TimeRange;
  readonly store: Store;
  readonly stage: Stage;
  readonly motion: Motion;
  readonly tooltip = new Tooltip();
  view: TimeRange;
  selection: Spot | null = null;
  mark: TimeRange | null = null;
  /** What to keep in its place when a key zooms: the time under the pointer, or the middle. */
  anchor: () => number = () => (this.view.start_ns + this.view.end_ns) / 2;
  /** Called when a frame has been drawn, as the event under the pointer may have changed. */
  drawn: () => void = () => undefined;
  private links: readonly Spot[] = [];
  private filter = "";
  private readonly heights = window.matchMedia("(pointer: coarse)").matches ? FINGER_HEIGHTS : HEIGHTS;
  private folded: Set<string>;
  private layout: Layout;
  private theme: Theme;
  private readonly labels = new Labels((key) => this.toggle(key));
  private readonly loader: Loader;
  private readonly handlers: { [K in keyof PaneEvents]: PaneEvents[K][] } = { select: [], measure: [], view: [] };
  private readonly sizes = new ResizeObserver(() => this.resize());
  private frame = 0;
  private silent = true;
  private reported: TimeRange;

  constructor(
    host: HTMLElement, readonly client: Client, readonly info: CaptureInfo,
    readonly palette: Overview["palette"],
  ) {
    this.limits = limitsOf(info);
    this.view = this.reported = clamped(info.first_view ?? this.limits, this.limits);
    this.motion = new Motion(this.limits);
    this.store = new Store(info);
    this.folded = foldedAtFirst(info.tracks, info.job);
    this.layout = layOut(info.tracks, this.folded, this.heights);
    const parts = buildSkeleton(info, this.labels.element, this.tooltip.element);
    this.stage = new Stage(parts, this.limits);
    host.replaceChildren(parts.root);
    this.theme = readTheme(parts.root, info.colors, palette);
    this.loader = new Loader(client, info.id, this.store, () => this.shown(), {
      arrived: () => this.arrived(),
      rested: () => (this.root.dataset["state"] = "ready"),
      failed: (why) => this.say(`No response: ${why} Retrying …`),
    });
    this.labels.show(this.layout);
    this.stage.arrange(this.layout);
    this.note(this.view);
    this.listen();
  }

  get root(): HTMLElement {
    return this.stage.parts.root;
  }

  get scene(): Scene {
    const { info, theme, layout, store, view, selection, links, mark, filter } = this;
    return { info, theme, layout, store, view, selection, links, mark, filter };
  }

  on<K extends keyof PaneEvents>(event: K, handler: PaneEvents[K]): void {
    this.handlers[event].push(handler);
  }

  /** Show a time range, at once or gliding there. */
  move(range: TimeRange, { smooth = false, silent = false, lasts_ms }: Moving = {}): void {
    const to = clamped(range, this.limits);
    this.silent = silent;
    this.motion.stop();
    if (smooth && !prefersStill()) this.motion.glideTo(this.view, to, performance.now(), lasts_ms);
    else this.view = to;
    this.redraw();
  }

  /** Notify the page of moves from here on, as they are by hand. */
  loud(): void {
    this.silent = false;
  }

  /** Report a failed request, unless it was aborted; returns null. */
  fail(error: unknown, signal: AbortSignal): null {
    if (!signal.aborted) this.say(error instanceof Error ? error.message : String(error));
    return null;
  }

  /** Request a frame. */
  redraw(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame((now) => this.draw(now));
  }

  /** Mark an event as selected; by hand, the page is notified. */
  choose(spot: Spot | null, byHand: boolean): void {
    this.selection = spot;
    this.links = [];
    if (spot) this.root.dataset["selected"] = `${spot.table}:${spot.row}`;
    else delete this.root.dataset["selected"];
    this.stage.parts.live.textContent = spot ? this.describe(spot) : "Nothing selected";
    this.redraw();
    if (byHand) this.handlers.select.forEach((handler) => handler(spot));
  }

  setLinks(spots: readonly Spot[]): void {
    this.links = spots;
    this.redraw();
  }

  /** Mark a time range; by hand, the page is notified. */
  setMark(range: TimeRange | null, byHand: boolean): void {
    this.mark = range && clampedTo(range, this.limits);
    const { mark } = this;
    if (mark) this.root.dataset["markNs"] = `${Math.round(mark.start_ns)}-${Math.round(mark.end_ns)}`;
    else delete this.root.dataset["markNs"];
    this.redraw();
    if (byHand) this.handlers.measure.forEach((handler) => handler(mark));
  }

  setFilter(text: string): void {
    this.filter = text.trim().toLowerCase();
    this.redraw();
  }

  refresh(): void {
    this.store.refresh();
    this.loader.again();
    this.root.dataset["state"] = "loading";
    this.redraw();
  }

  /** Bring an event into view: unfold what hides it, scroll to its line, go to its time. */
  reveal(spot: Spot): void {
    this.unfold(spot);
    this.stage.reveal(this.layout, spot.track, spot.line);
    const span = spot.end_ns - spot.start_ns;
    const inside = spot.start_ns >= this.view.start_ns && spot.end_ns <= this.view.end_ns;
    const wide = (span / spanOf(this.view)) * this.stage.width;
    if (inside && wide >= SEEN_PX) return;
    const fits = wide >= SEEN_PX && span < spanOf(this.view);
    const middle = (spot.start_ns + spot.end_ns) / 2;
    const half = spanOf(this.view) / 2;
    this.move(fits ? { start_ns: middle - half, end_ns: middle + half } : framed(spot, REVEALED), { smooth: true });
  }

  scroll(by: number): void {
    this.stage.parts.body.scrollTop += by;
  }

  /** Stop everything and leave the page. */
  destroy(): void {
    cancelAnimationFrame(this.frame);
    this.loader.stop();
    this.sizes.disconnect();
    document.removeEventListener(THEME_CHANGED, this.retheme);
    this.root.remove();
  }

  private listen(): void {
    this.sizes.observe(this.stage.parts.body);
    this.sizes.observe(this.root);
    this.sizes.observe(this.stage.parts.area);
    document.addEventListener(THEME_CHANGED, this.retheme);
    this.stage.parts.body.addEventListener("scroll", () => {
      this.stage.noteScroll();
      if (this.stage.isOutside) this.redraw();
    }, { passive: true });
    this.resize();
  }

  private resize(): void {
    this.stage.measure();
    this.redraw();
  }

  private readonly retheme = (): void => {
    this.theme = readTheme(this.root, this.info.colors, this.palette);
    this.redraw();
  };

  private draw(now: number): void {
    this.frame = 0;
    if (this.motion.moving) this.view = this.motion.step(this.view, this.anchor(), now);
    this.stage.paint(this.scene);
    if (this.motion.moving) this.redraw();
    if (this.motion.isNews(this.view, this.reported)) this.report();
    this.drawn();
    this.loader.wake();
  }

  private report(): void {
    const { view } = this;
    this.reported = view;
    this.note(view);
    this.root.dataset["state"] = "loading";
    if (!this.silent) this.handlers.view.forEach((handler) => handler(view));
  }

  private note(view: TimeRange): void {
    this.root.dataset["startNs"] = String(Math.round(view.start_ns));
    this.root.dataset["endNs"] = String(Math.round(view.end_ns));
  }

  private arrived(): void {
    this.say("");
    this.redraw();
  }

  private say(text: string): void {
    const { message } = this.stage.parts;
    message.hidden = text === "";
    if (message.textContent !== text) message.textContent = text;
  }

  private shown(): Shown {
    const { top, bottom } = this.stage.span;
    const rows = rowsWithin(this.layout, top, bottom);
    const tracks = [...new Set(rows.flatMap((row) => (row.track ? [row.track.key] : [])))];
    const overview = overviewTracks(this.info).flat().map((track) => track.key);
    return { view: this.view, pixels: this.stage.pixels, tracks, whole: [...new Set([...overview, ...tracks])] };
  }

  private toggle(key: string): void {
    if (!this.folded.delete(key)) this.folded.add(key);
    this.relayout();
  }

  private unfold(spot: Spot): void {
    if (placeOf(this.layout, spot.track, spot.line)?.row.folded === false) return;
    const all = layOut(this.info.tracks, new Set());
    const row = all.rows.find((row) => row.key === spot.track);
    if (!row) return;
    [...row.parents, row.key].forEach((key) => this.folded.delete(key));
    this.relayout();
  }

  private relayout(): void {
    this.layout = layOut(this.info.tracks, this.folded, this.heights);
    this.labels.show(this.layout);
    this.stage.arrange(this.layout);
    this.stage.measure();
    this.redraw();
  }

  private describe(spot: Spot): string {
    const track = this.info.tracks.find((track) => track.key === spot.track);
    const where = track ? `, ${[track.thread, track.name].filter(Boolean).join(" ")}` : "";
    return `Selected ${spot.name}, ${formatTime(spot.end_ns - spot.start_ns)}${where}`;
  }
}

/** A range cut to the limits; one that lies outside becomes empty, at the nearest limit. */
function clampedTo(range: TimeRange, limits: TimeRange): TimeRange {
  const inside = (time_ns: number): number => Math.min(Math.max(time_ns, limits.start_ns), limits.end_ns);
  return { start_ns: inside(range.start_ns), end_ns: inside(range.end_ns) };
}

export function prefersStill(): boolean {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}
