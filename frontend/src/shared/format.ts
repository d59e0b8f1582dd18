// Quantities as text, to the letter as src/gpusight/units.py writes them: a number on the page is the
// number in the terminal.

/** Shown for an unknown value. */
export const MISSING = "-";

type Value = number | null | undefined;
type Steps = readonly (readonly [factor: number, unit: string])[];

const TIME_STEPS: Steps = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
const BYTE_STEPS: Steps = [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"], [1e15, "PB"]];

/** Nanoseconds as ns, µs, ms or s: `1.234 ms`. */
export function formatTime(ns: Value, digits = 4): string {
  return scaled(ns, TIME_STEPS, digits);
}

/** Bytes in SI units: `1.500 MB` is 1,500,000 bytes. */
export function formatBytes(count: Value): string {
  return scaled(count, BYTE_STEPS);
}

/** Bytes/s in SI units: `12.50 GB/s`. */
export function formatRate(bytesPerSecond: Value): string {
  const text = scaled(bytesPerSecond, BYTE_STEPS);
  return text === MISSING ? text : `${text}/s`;
}

/** A whole number grouped by commas; a fraction is kept when there is one. */
export function formatCount(value: Value): string {
  if (!known(value)) return MISSING;
  return Number.isInteger(value) ? grouped(value.toFixed(0)) : formatReal(value);
}

/** A fraction of 1 as a percentage; what is small but not zero does not read as zero. */
export function formatShare(fraction: Value): string {
  if (!known(fraction)) return MISSING;
  const percent = fraction * 100;
  return percent > 0 && percent < 0.05 ? "<0.1%" : `${fixed(percent, 1)}%`;
}

/** A number with four significant digits, grouped by commas when large. */
export function formatReal(value: Value): string {
  if (!known(value)) return MISSING;
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-3) return value.toExponential(3).replace(/e([+-])(\d)$/, "e$10$2");
  return grouped(fixed(value, decimals(Math.abs(value))));
}

/** A line that begins with a capital letter, as a sentence does; names such as `launch-bound` stay as they are. */
export function capital(text: string): string {
  const isName = text.startsWith("gpusight") || !/^[a-z]+([\s,:;]|\.?$)/.test(text);
  return isName ? text : text.slice(0, 1).toUpperCase() + text.slice(1);
}

function known(value: Value): value is number {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function decimals(magnitude: number): number {
  return Math.max(0, 3 - Math.floor(Math.log10(magnitude)));
}

function scaled(value: Value, steps: Steps, digits = 4): string {
  if (!known(value)) return MISSING;
  const magnitude = Math.abs(value);
  // 999,960 ns must become 1.000 ms, not 1000.0 µs: step up once a fifth digit would be needed.
  const rounding = 0.5 * 10 ** -digits;
  const index = steps.slice(1).filter(([factor]) => magnitude >= factor * (1 - rounding)).length;
  const [factor, unit] = steps[index] as (typeof steps)[number];
  if (index === 0) return `${Number.isInteger(value) ? value.toFixed(0) : fixed(value, 1)} ${unit}`;
  const inUnit = value / factor;
  const places = Math.min(digits - 1, Math.max(0, decimals(Math.abs(inUnit) * (1 + rounding)) + digits - 4));
  return `${grouped(fixed(inUnit, places))} ${unit}`;
}

/** As toFixed, but a value that lies halfway goes to the even digit, as Python's do. */
function fixed(value: number, digits: number): string {
  const halves = value * 2 ** (digits + 1); // exact: a tie in decimals is an odd number of these
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(digits);
  const below = Math.floor((halves * 5 ** digits) / 2);
  return ((below % 2 === 0 ? below : below + 1) / 10 ** digits).toFixed(digits);
}

function grouped(digits: string): string {
  const [whole = "", fraction] = digits.split(".");
  const parts = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction === undefined ? parts : `${parts}.${fraction}`;
}
