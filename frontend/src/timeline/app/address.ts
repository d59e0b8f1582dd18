// The place in the address, `#c=0&t=1000-2000&e=kernels:17`: reloading or passing it on keeps the view.
// Each `c` begins what one timeline shows.

import type { TimeRange } from "../types";

/** What one timeline shows, as the address has it. */
export interface Place {
  readonly capture: number;
  readonly view: TimeRange | null;
  readonly event: { readonly table: string; readonly row: number } | null;
  readonly mark: TimeRange | null;
}

/** Read what follows the `#`; what makes no sense is left out. */
export function readAddress(hash: string): Place[] {
  const places: Place[] = [];
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key === "c" && /^\d{1,6}$/.test(value)) {
      places.push({ capture: Number(value), view: null, event: null, mark: null });
      continue;
    }
    const last = places.pop();
    if (last) places.push({ ...last, ...part(key, value) });
  }
  return places;
}

/** Write what `readAddress` reads. */
export function writeAddress(places: readonly Place[]): string {
  return `#${places.map(written).join("&")}`;
}

function written(place: Place): string {
  const { view, event, mark } = place;
  return [
    `c=${place.capture}`,
    view && `t=${times(view)}`,
    event && `e=${encodeURIComponent(event.table)}:${event.row}`,
    mark && `m=${times(mark)}`,
  ].filter(Boolean).join("&");
}

function part(key: string, value: string): Partial<Place> {
  if (key === "t") return { view: range(value) };
  if (key === "m") return { mark: range(value) };
  const event = key === "e" && /^(\w{1,60}):(\d{1,10})$/.exec(value);
  return event ? { event: { table: event[1] as string, row: Number(event[2]) } } : {};
}

function range(text: string): TimeRange | null {
  const match = /^(-?\d{1,19})-(-?\d{1,19})$/.exec(text);
  if (!match) return null;
  const [start_ns, end_ns] = [Number(match[1]), Number(match[2])];
  return end_ns > start_ns ? { start_ns, end_ns } : null;
}

function times(shown: TimeRange): string {
  return `${Math.floor(shown.start_ns)}-${Math.ceil(shown.end_ns)}`;
}
