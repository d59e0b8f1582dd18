// Where the ruler has its ticks, and what stands at them: times from the capture's origin, as in its
// tables.

import { formatTime } from "../../shared/format";
import type { TimeRange } from "../types";

/** Ticks of a ruler; times at them count from `base_ns` where one is set. */
export interface Ticks {
  readonly step_ns: number;
  readonly at: readonly { readonly time_ns: number; readonly text: string }[];
  /** Part of the time that all ticks share, where writing it at each would be too long. */
  readonly base: { readonly time_ns: number; readonly text: string } | null;
}

const UNITS: readonly (readonly [factor: number, name: string])[] = [
  [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"],
];
/** From so many steps on, times at ticks are too long to be read. */
const MANY_STEPS = 50_000;

/** The round length nearest above `least_ns`: 1, 2 or 5 of a power of ten, at least a nanosecond. */
export function roundStep(least_ns: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least_ns, 1)));
  const times = [1, 2, 5, 10].find((digit) => digit * power >= least_ns * (1 - 1e-9)) ?? 10;
  return times * power;
}

/** Ticks of a range at least `least_ns` apart. */
export function ticksOf(range: TimeRange, least_ns: number): Ticks {
  const step_ns = roundStep(least_ns);
  const unit = unitOf(step_ns);
  const base = baseOf(range, step_ns, unit[0]);
  const from = base?.time_ns ?? 0;
  const first = Math.ceil((range.start_ns - from) / step_ns);
  const count = Math.max(0, Math.floor((range.end_ns - from) / step_ns) - first + 1);
  const at = Array.from({ length: count }, (_, index) => {
    const since = (first + index) * step_ns;
    return { time_ns: from + since, text: (base ? "+" : "") + inUnit(since, step_ns, unit) };
  });
  return { step_ns, at, base };
}

/** A time, as exact as the screen shows it: `12.345678 s`. */
export function exactTime(time_ns: number, nsPerPixel: number): string {
  const resolution = roundStep(Math.max(nsPerPixel, 1) / 2);
  const unit = unitOf(Math.max(Math.abs(time_ns), resolution));
  return inUnit(Math.round(time_ns / resolution) * resolution, resolution, unit);
}

function unitOf(step_ns: number): readonly [number, string] {
  return UNITS.find(([factor]) => step_ns >= factor) ?? [1, "ns"];
}

function inUnit(ns: number, step_ns: number, [factor, name]: readonly [number, string]): string {
  const decimals = Math.max(0, Math.ceil(Math.log10(factor / step_ns) - 1e-9));
  const digits = (ns / factor).toFixed(Math.min(decimals, 9));
  const [whole = "", fraction] = digits.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return `${fraction === undefined ? grouped : `${grouped}.${fraction}`} ${name}`;
}

function baseOf(range: TimeRange, step_ns: number, unit: number): Ticks["base"] {
  if (range.start_ns < 0 || range.end_ns < step_ns * MANY_STEPS) return null;
  const whole = unit * 1000;
  const time_ns = Math.floor(range.start_ns / whole) * whole;
  return time_ns === 0 ? null : { time_ns, text: baseText(time_ns, whole) };
}

function baseText(time_ns: number, whole: number): string {
  const unit = unitOf(Math.max(whole, Math.min(time_ns, 1e9)));
  return inUnit(time_ns, Math.min(whole, unit[0]), unit);
}

/** A round length that fits into so many pixels, with its text: the scale bar. */
export function scaleBar(nsPerPixel: number, room: number): { pixels: number; text: string } {
  const most = nsPerPixel * room;
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  const length = ([5, 2, 1].find((digit) => digit * power <= most) ?? 1) * power;
  return { pixels: length / nsPerPixel, text: formatTime(length).replace(/\.0+ /, " ") };
}
