// How much of the time around a place to show, so that a reader sees it and where it lies.

import type { TimeRange } from "../types";

const LEAST_NS = 2_000;
const MARGIN = 0.4;

/** A range with the place in its middle and some of what is around it, inside the capture. */
export function around(place: TimeRange, bounds: TimeRange): TimeRange {
  const length = Math.max(place.end_ns - place.start_ns, LEAST_NS);
  const middle = (place.start_ns + place.end_ns) / 2;
  const half = length * (0.5 + MARGIN);
  return {
    start_ns: Math.max(middle - half, Math.min(bounds.start_ns, place.start_ns)),
    end_ns: Math.min(middle + half, Math.max(bounds.end_ns, place.end_ns)),
  };
}
