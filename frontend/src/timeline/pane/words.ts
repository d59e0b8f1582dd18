// What is under the pointer, in words.

import { formatCount, formatShare, formatTime } from "../../shared/format";
import type { CaptureInfo, Overview, Step } from "../types";
import type { Found, Hit } from "./hit";
import { valueText } from "./overlay";
import { stepName } from "./ruler";

type Palette = Overview["palette"];

/** Lines of a tooltip; the first stands out. */
export interface Words {
  readonly lines: readonly string[];
  /** What the color under the pointer means; null where it is only one of many. */
  readonly color: { readonly text: string; readonly light: string; readonly dark: string } | null;
}

/** Describe what is drawn at a place; null where nothing is. */
export function wordsOf({ target, track }: Hit, info: CaptureInfo, palette: Palette): Words | null {
  if (target === null) return null;
  const where = track.thread ? `${track.thread} · ${track.name}` : track.name;
  if (target.kind === "values") return { lines: [...valueLines(target, (value) => valueText(track, value)), track.name], color: null };
  const key = info.colors[target.color] ?? "";
  if (target.kind === "bin") return { lines: [...binLines(target), where], color: target.busy > 0 ? meaning(key, palette, "mostly ") : null };
  const { name, start_ns, end_ns } = target.spot;
  const length = end_ns > start_ns ? formatTime(end_ns - start_ns) : "an instant";
  const lines = [name, `${length}, at ${formatTime(start_ns)}`, where];
  return { lines, color: track.kind === "ledger" ? null : meaning(key, palette, "") }; // its name has it
}

/** Name the step. */
export function wordsOfStep(step: Step): Words {
  const when = `${formatTime(step.end_ns - step.start_ns)}, at ${formatTime(step.start_ns)}`;
  return { lines: [stepName(step), when, "Double-click to zoom"], color: null };
}

/** Ranges and operators have their colors from their names: those mean nothing more. */
function meaning(key: string, palette: Palette, before: string): Words["color"] {
  const pair = palette[key];
  return key.startsWith("host/") || !pair ? null : { text: before + key.replace("/", ": "), ...pair };
}

function binLines({ count, busy, start_ns, end_ns }: Found & { kind: "bin" }): string[] {
  const events = count === 1 ? "1 event" : `${formatCount(count)} events`;
  const share = `${formatShare(busy)} busy`;
  return [count === 0 ? share : `${events}, ${share}`, `within ${formatTime(end_ns - start_ns)}`];
}

function valueLines({ lines }: Found & { kind: "values" }, text: (value: number) => string): string[] {
  const [first, second] = lines;
  const range = first && first.low !== first.high ? ` (${text(first.low)} to ${text(first.high)})` : "";
  return [first ? text(first.mean) + range : "", second ? `${text(second.mean)} reserved` : ""].filter((line) => line !== "");
}
