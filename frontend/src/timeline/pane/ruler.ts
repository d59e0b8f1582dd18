// The strip on top: times, steps as named bands, and the selected range with its length.

import { formatTime } from "../../shared/format";
import type { Step, TimeRange } from "../types";
import { ticksShown } from "./paint";
import type { Scene, Surface } from "./scene";
import { Scale } from "./viewport";

/** Heights in CSS pixels. */
const RULER = { ticks: 26, steps: 18, withoutSteps: 8 };
const FONT = 11;
/** Steps narrower than this, in CSS pixels, have neither name nor number. */
const NUMBERED = 22;

export function rulerHeight(steps: readonly Step[]): number {
  return RULER.ticks + (steps.length ? RULER.steps : RULER.withoutSteps);
}

/** Draw the ruler. */
export function paintRuler(surface: Surface, scene: Scene): void {
  const { context, width, height, ratio } = surface;
  const scale = new Scale(scene.view, width);
  context.fillStyle = scene.theme.css.chrome;
  context.fillRect(0, 0, width, height);
  context.font = `${FONT * ratio}px ${scene.theme.font}`;
  context.textBaseline = "alphabetic";
  paintTicks(surface, scene, scale);
  if (scene.info.steps.length) paintSteps(surface, scene, scale);
  if (scene.mark) paintMarked(surface, scene, scale, scene.mark);
}

function paintTicks(surface: Surface, scene: Scene, scale: Scale): void {
  const { context, height, ratio } = surface;
  const { theme } = scene;
  const ticks = ticksShown(surface, scene);
  const baseline = (scene.info.steps.length ? 17 : 21) * ratio;
  const base = ticks.base ? context.measureText(ticks.base.text).width + 20 * ratio : 0;
  for (const { time_ns, text } of ticks.at) {
    const x = scale.pixel(time_ns);
    context.fillStyle = theme.css.grid;
    context.fillRect(x, 0, Math.max(1, Math.round(ratio)), height);
    context.fillStyle = theme.css.muted;
    if (x > base) context.fillText(text, x + 5 * ratio, baseline);
  }
  if (ticks.base === null) return;
  context.fillStyle = theme.css.chrome;
  context.fillRect(0, 0, base - 6 * ratio, scene.info.steps.length ? RULER.ticks * ratio : height);
  context.fillStyle = theme.css.text;
  context.fillText(ticks.base.text, 6 * ratio, baseline);
}

function paintSteps(surface: Surface, scene: Scene, scale: Scale): void {
  const { context, ratio } = surface;
  const [top, bottom] = [RULER.ticks * ratio, (RULER.ticks + RULER.steps - 2) * ratio];
  for (const step of stepsWithin(scene.info.steps, scene.view)) {
    const left = Math.max(0, scale.pixel(step.start_ns));
    const right = Math.min(surface.width, scale.pixel(step.end_ns));
    const gap = right - left > 4 * ratio ? Math.round(ratio) : 0;
    context.fillStyle = step.warmup ? scene.theme.css.warm : scene.theme.css.step;
    context.fillRect(left, top, Math.max(1, right - left - gap), bottom - top);
    if (right - left >= NUMBERED * ratio) writeStep(surface, scene, step, left, right);
  }
}

function writeStep({ context, ratio }: Surface, { theme }: Scene, step: Step, left: number, right: number): void {
  const name = stepName(step);
  const text = [`${name} · ${formatTime(step.end_ns - step.start_ns)}`, name, String(step.number)]
    .find((text) => context.measureText(text).width <= right - left - 10 * ratio);
  context.fillStyle = theme.css.text;
  if (text) context.fillText(text, left + 5 * ratio, (RULER.ticks + 12.5) * ratio);
}

/** What a step is called: as its range, with the number where the range's name lacks it. */
export function stepName({ name, number, warmup }: Step): string {
  const own = name === "" ? `Step ${number}` : name.includes(String(number)) ? name : `${name} ${number}`;
  return warmup ? `${own} (warm-up)` : own;
}

/** The step at a time; null where none is. */
export function stepAt(steps: readonly Step[], time_ns: number): Step | null {
  const [step] = stepsWithin(steps, { start_ns: time_ns, end_ns: time_ns + 1 });
  return step ?? null;
}

/** Steps that touch a range; they are in order and do not overlap. */
export function stepsWithin(steps: readonly Step[], range: TimeRange): readonly Step[] {
  const from = lowest(steps, (step) => step.end_ns > range.start_ns);
  const to = lowest(steps, (step) => step.start_ns >= range.end_ns);
  return steps.slice(from, Math.max(from, to));
}

/** The step after the middle of what is shown, or before it; null where there is none. */
export function stepBeside(steps: readonly Step[], view: TimeRange, direction: 1 | -1): Step | null {
  const middle = (view.start_ns + view.end_ns) / 2;
  const after = lowest(steps, (step) => step.start_ns > middle);
  if (direction > 0) return steps[after] ?? null;
  const here = steps[after - 1];
  return (here && here.end_ns > middle ? steps[after - 2] : here) ?? null;
}

/** Position of the first that holds, where all after it hold too. */
function lowest<T>(all: readonly T[], holds: (item: T) => boolean): number {
  let [low, high] = [0, all.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(all[middle] as T)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function paintMarked(surface: Surface, { theme }: Scene, scale: Scale, mark: TimeRange): void {
  const { context, ratio, width, height } = surface;
  const [left, right] = [scale.pixel(mark.start_ns), scale.pixel(mark.end_ns)];
  const [from, to] = [Math.max(0, left), Math.min(width, right)];
  if (to < 0 || from > width) return;
  context.fillStyle = theme.css.mark;
  context.globalAlpha = 0.16;
  context.fillRect(from, 0, to - from, height);
  context.globalAlpha = 1;
  for (const x of [left, right]) context.fillRect(x - ratio, 0, 3 * ratio, height);
  writeLength(surface, theme.css, formatTime(mark.end_ns - mark.start_ns), from, to);
}

/** The length stands in the middle of what is marked, or next to it where it is too narrow. */
function writeLength(
  { context, ratio, width }: Surface, css: Scene["theme"]["css"], text: string, from: number, to: number,
): void {
  context.font = `600 ${context.font}`;
  const wide = context.measureText(text).width + 10 * ratio;
  const inside = (from + to - wide) / 2;
  const beside = to + 4 * ratio + wide < width ? to + 4 * ratio : from - 4 * ratio - wide;
  const left = wide + 8 * ratio < to - from ? inside : beside;
  context.fillStyle = css.mark;
  context.fillRect(left, 4 * ratio, wide, 18 * ratio);
  context.fillStyle = css.chrome;
  context.fillText(text, left + 5 * ratio, 17 * ratio);
}
