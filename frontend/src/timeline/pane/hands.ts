// What people do with a pane: keys, mouse, wheel and fingers, as changes of what it shows.

import type { Spot, TimeRange, Track } from "../types";
import { brush } from "./brush";
import { type Core, prefersStill } from "./core";
import { type Hit, hitAt } from "./hit";
import { listenToWheel, type Pointing, PointerInput } from "./input";
import { type Commands, wayOf } from "./keys";
import { HEIGHTS } from "./layout";
import type { Way } from "./motion";
import { neighbor } from "./neighbor";
import { stepAt, stepBeside } from "./ruler";
import type { At } from "./stage";
import { type Words, wordsOf, wordsOfStep } from "./words";
import { framed, panned, Scale, spanOf, zoomed } from "./viewport";

/** What a double click or F shows of an event: so much of the screen is the event. */
const FITTED = 0.7;
const STEP_FRAMED = 0.92;
/** One press of a key where motion is not welcome. */
const JUMP = { zoom: 1.3, pan: 0.12 };
const WHEEL_GLIDE_MS = 110;

export class Hands implements Pointing, Commands {
  private pointer: PointerEvent | null = null;
  private asking: AbortController | null = null;

  constructor(private readonly core: Core) {
    const { area, body, ruler, overview } = core.stage.parts;
    new PointerInput(area, this);
    listenToWheel(body, area, this, false);
    listenToWheel(ruler, area, this, true);
    listenToWheel(overview, area, this, true);
    this.listenToRuler(ruler);
    this.listenToOverview(overview);
    core.anchor = () => this.anchor();
    core.drawn = () => this.hover(this.pointer);
    core.root.addEventListener("pointerenter", () => core.stage.locate());
    core.root.addEventListener("pointerdown", () => core.stage.locate(), { capture: true });
    window.addEventListener("keyup", this.onKeyUp);
    window.addEventListener("blur", this.onBlur);
  }

  destroy(): void {
    this.asking?.abort();
    window.removeEventListener("keyup", this.onKeyUp);
    window.removeEventListener("blur", this.onBlur);
  }

  // Pointing

  hover(event: PointerEvent | null): void {
    const { core } = this;
    this.pointer = event;
    const hit = event && this.hitOf(event);
    const at = event && core.stage.at(core.view, event);
    core.stage.showCursor(core.scene, at ? at.x : null);
    core.stage.showHover(core.scene, hit ? outlined(hit) : null);
    if (at) core.tooltip.show(event.buttons ? null : this.wordsAt(hit, at), at.paneX, at.paneY);
    else core.tooltip.hide();
  }

  click(event: PointerEvent): void {
    this.core.stage.parts.area.focus({ preventScroll: true });
    void this.pickAt(event).then((spot) => spot !== undefined && this.core.choose(spot, true));
  }

  doubleClick(event: MouseEvent): void {
    void this.pickAt(event).then((spot) => {
      if (!spot) return;
      this.core.choose(spot, true);
      this.core.move(framed(spot, FITTED), { smooth: true });
    });
  }

  drag(x: number, y: number): void {
    const { core } = this;
    if (x) core.move(panned(core.view, -x / core.stage.width, core.limits));
    if (y) core.scroll(-y);
  }

  zoom(x: number, factor: number, coarse: boolean): void {
    const { core } = this;
    const from = core.motion.target ?? core.view;
    const at_ns = core.view.start_ns + (x / core.stage.width) * spanOf(core.view);
    const to = coarse ? aimed(from, core.view, at_ns, factor, core.limits) : zoomed(core.view, at_ns, factor, core.limits);
    core.move(to, { smooth: coarse, lasts_ms: WHEEL_GLIDE_MS });
  }

  mark(from: number, to: number): void {
    const scale = new Scale(this.core.view, this.core.stage.width);
    const [one, other] = [scale.time(from), scale.time(to)];
    this.core.setMark({ start_ns: Math.min(one, other), end_ns: Math.max(one, other) }, true);
  }

  // Commands

  hold(way: Way): void {
    const { core } = this;
    if (!prefersStill()) core.motion.hold(way, performance.now());
    else if (way === "left" || way === "right") core.move(panned(core.view, way === "left" ? -JUMP.pan : JUMP.pan, core.limits));
    else core.move(zoomed(core.view, this.anchor(), way === "in" ? 1 / JUMP.zoom : JUMP.zoom, core.limits));
    core.loud();
    core.redraw();
  }

  scroll(lines: number): void {
    this.core.scroll(lines * HEIGHTS.stream * 2);
  }

  showAll(): void {
    this.core.move(this.core.limits, { smooth: true });
  }

  fitSelection(): void {
    const { selection, mark } = this.core;
    const range = selection ?? mark;
    if (range) this.core.move(framed(range, FITTED), { smooth: true });
    if (selection) this.core.stage.reveal(this.core.scene.layout, selection.track, selection.line);
  }

  markSelection(): void {
    const { selection } = this.core;
    if (selection) this.core.setMark({ start_ns: selection.start_ns, end_ns: selection.end_ns }, true);
  }

  clear(): boolean {
    const { core } = this;
    const anything = core.selection !== null || core.mark !== null;
    if (core.selection) core.choose(null, true);
    if (core.mark) core.setMark(null, true);
    return anything;
  }

  step(direction: 1 | -1): void {
    const { core } = this;
    const step = stepBeside(core.info.steps, core.motion.target ?? core.view, direction);
    if (step) core.move(framed(step, STEP_FRAMED), { smooth: true });
  }

  neighbor(direction: 1 | -1): void {
    const { core } = this;
    const { selection } = core;
    const track = selection && this.track(selection.track);
    if (!selection || !track) return;
    void neighbor(core.client, core.info, track, selection, direction).then((spot) => {
      if (spot === null || core.selection !== selection) return;
      core.choose(spot, true);
      core.reveal(spot);
    });
  }

  /** What to say at a place: of what is drawn there or, on the ruler, of the step. */
  private wordsAt(hit: Hit | null, { time_ns, y }: At): Words | null {
    const { info, stage, palette } = this.core;
    if (hit) return wordsOf(hit, info, palette);
    const step = stage.shows(y) ? null : stepAt(info.steps, time_ns);
    return step && wordsOfStep(step);
  }

  private track(key: string): Track | undefined {
    return this.core.info.tracks.find((track) => track.key === key);
  }

  private anchor(): number {
    const { view, stage } = this.core;
    return this.pointer ? stage.at(view, this.pointer).time_ns : (view.start_ns + view.end_ns) / 2;
  }

  private hitOf(event: MouseEvent): Hit | null {
    const { core } = this;
    const { time_ns, y } = core.stage.at(core.view, event);
    if (!core.stage.shows(y)) return null;
    return hitAt(core.scene, time_ns, y, core.stage.pixels);
  }

  /** The event at a place, which the server knows where only a sum is drawn; undefined where asked anew. */
  private async pickAt(event: MouseEvent): Promise<Spot | null | undefined> {
    const { core } = this;
    const hit = this.hitOf(event);
    this.asking?.abort();
    if (!hit?.target || hit.target.kind === "values") return null;
    if (hit.target.kind === "event") return hit.target.spot;
    const asking = (this.asking = new AbortController());
    const within = (4 * spanOf(core.view)) / core.stage.width;
    const spot = await core.client
      .pick(core.info.id, hit.track.key, hit.line, hit.time_ns, Math.max(1, within), asking.signal)
      .catch((error: unknown) => core.fail(error, asking.signal));
    return asking.signal.aborted ? undefined : spot;
  }

  private listenToRuler(ruler: HTMLElement): void {
    const { core } = this;
    brush(ruler, {
      movable: false,
      shows: () => core.view,
      holds: () => core.mark,
      changed: (range) => core.setMark(range, true),
      clicked: () => core.mark && core.setMark(null, true),
    });
    ruler.addEventListener("pointermove", (event) => this.hover(event));
    ruler.addEventListener("pointerleave", () => this.hover(null));
    ruler.addEventListener("dblclick", (event) => this.showStep(core.stage.at(core.view, event).time_ns));
  }

  private showStep(time_ns: number): void {
    const step = stepAt(this.core.info.steps, time_ns);
    if (step) this.core.move(framed(step, STEP_FRAMED), { smooth: true });
  }

  private listenToOverview(overview: HTMLElement): void {
    const { core } = this;
    brush(overview, {
      movable: true,
      shows: () => core.limits,
      holds: () => core.view,
      changed: (range) => core.move(range),
      clicked: (time_ns) => core.move(about(time_ns, core.view), { smooth: true }),
    });
    overview.addEventListener("dblclick", () => this.showAll());
  }

  private readonly onKeyUp = (event: KeyboardEvent): void => {
    const way = wayOf(event);
    if (way) this.core.motion.release(way, performance.now());
  };

  private readonly onBlur = (): void => this.core.motion.releaseAll(performance.now());
}

/** A range as long about another time. */
function about(time_ns: number, view: TimeRange): TimeRange {
  const half = spanOf(view) / 2;
  return { start_ns: time_ns - half, end_ns: time_ns + half };
}

/** Zoom further than where the view is going, so that the time under the pointer stays there all along. */
function aimed(target: TimeRange, view: TimeRange, at_ns: number, factor: number, limits: TimeRange): TimeRange {
  return zoomed(view, at_ns, (spanOf(target) / spanOf(view)) * factor, limits);
}

/** What is outlined under the pointer. */
function outlined({ track, line, target }: Hit): Pick<Spot, "start_ns" | "end_ns" | "track" | "line"> | null {
  if (target === null || target.kind === "values") return null;
  const { start_ns, end_ns } = target.kind === "event" ? target.spot : target;
  return { start_ns, end_ns, track: track.key, line };
}
