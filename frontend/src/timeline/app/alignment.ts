// Two captures have two clocks: which times of one stand above which of the other.

import type { CaptureInfo, Step, TimeRange } from "../types";

/** At which moment two captures are laid over each other. */
export type Alignment = "step" | "start";

/** The first step after warm-up. */
export function firstJudged(info: CaptureInfo): Step | null {
  return info.steps.find((step) => !step.warmup) ?? null;
}

/** Steps can be aligned where both captures have some after warm-up. */
export function alignments(first: CaptureInfo, second: CaptureInfo): Alignment[] {
  return firstJudged(first) && firstJudged(second) ? ["step", "start"] : ["start"];
}

/** The same time range on the other capture's clock. */
export function carried(range: TimeRange, from: CaptureInfo, to: CaptureInfo, by: Alignment): TimeRange {
  const shift = anchor(to, by) - anchor(from, by);
  return { start_ns: range.start_ns + shift, end_ns: range.end_ns + shift };
}

/** Whether a time range shows anything of a capture. */
export function touches(range: TimeRange, info: CaptureInfo): boolean {
  return range.start_ns < info.end_ns && range.end_ns > info.start_ns;
}

function anchor(info: CaptureInfo, by: Alignment): number {
  return (by === "step" ? firstJudged(info)?.start_ns : null) ?? info.start_ns;
}
