// The next or previous event of a line, found by looking at ever finer windows.

import type { Client } from "../client";
import type { CaptureInfo, Spot, TimeRange, Track } from "../types";
import { binStart, Held, type HeldLine } from "./held";

const BINS = 512;
/** How much further each look reaches than the one before where there was nothing. */
const FURTHER = 32;

/** The event after a spot on its line, or before it; null at the end of the line. */
export async function neighbor(
  client: Client, info: CaptureInfo, track: Track, spot: Spot, direction: 1 | -1,
): Promise<Spot | null> {
  const edge = direction > 0 ? Math.max(spot.end_ns, spot.start_ns + 1) : spot.start_ns;
  const last = direction > 0 ? info.end_ns + 1 : info.start_ns;
  let reach = Math.max(BINS, (spot.end_ns - spot.start_ns) * 64);
  for (let from = edge; (last - from) * direction > 0; reach *= FURTHER) {
    const to = direction > 0 ? Math.min(from + reach, last) : Math.max(from - reach, last);
    const neighbor = await within(client, info, track, spot.line, ordered(from, to), direction);
    if (neighbor) return neighbor;
    from = to;
  }
  return null;
}

const ordered = (one: number, other: number): TimeRange => ({ start_ns: Math.min(one, other), end_ns: Math.max(one, other) });

/** The first event that begins in a range, or the last that ends in it. */
async function within(
  client: Client, info: CaptureInfo, track: Track, line: number, stretch: TimeRange, direction: 1 | -1,
): Promise<Spot | null> {
  const bins = Math.max(1, Math.min(BINS, stretch.end_ns - stretch.start_ns));
  const window = await client.window(info.id, { ...stretch, bins, tracks: [track.key] });
  const held = new Held(window, [track.key]).line(track.key, line);
  const place = held && nearest(held, direction);
  if (!place) return null;
  const wide = place.end_ns - place.start_ns;
  const whole = window.end_ns - window.start_ns;
  if (!place.exact && wide > 1 && wide < whole) return within(client, info, track, line, place, direction);
  return client.pick(info.id, track.key, line, (place.start_ns + place.end_ns) / 2, Math.ceil(wide / 2) + 1);
}

/** Where the first thing of a line lies in the way one goes: a slice, or a bin that holds narrower ones. */
function nearest({ window, slices, bins }: HeldLine, direction: 1 | -1): (TimeRange & { exact: boolean }) | null {
  const from = (part: { from: number; to: number }): number => (direction > 0 ? part.from : part.to - 1);
  const [slice, sum] = [from(slices), from(bins)];
  const places: (TimeRange & { exact: boolean })[] = [];
  if (slices.to > slices.from) {
    const [start_ns, end_ns] = [window.slices.start_ns[slice] as number, window.slices.end_ns[slice] as number];
    places.push({ start_ns, end_ns, exact: true });
  }
  if (bins.to > bins.from) {
    const bin = window.bin_sums.bin[sum] as number;
    places.push({ start_ns: Math.floor(binStart(window, bin)), end_ns: Math.ceil(binStart(window, bin + 1)), exact: false });
  }
  places.sort((one, other) => (one.start_ns - other.start_ns) * direction);
  return places[0] ?? null;
}
