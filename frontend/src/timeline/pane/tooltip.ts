// What is under the pointer, in words, beside it.

import { el, fill } from "../../shared/dom";
import { formatCount, formatShare, formatTime } from "../../shared/format";
import type { CaptureInfo } from "../types";
import type { Hit } from "./hit";
import { valueText } from "./overlay";

/** Lines of a tooltip: the first stands out. */
export function tooltipLines(hit: Hit, info: CaptureInfo): readonly string[] {
  const { found, track } = hit;
  if (found === null) return [];
  const where = track.thread ? `${track.thread} · ${track.name}` : track.name;
  if (found.kind === "event") {
    const length = found.spot.end_ns - found.spot.start_ns;
    return [found.spot.name, `${length ? formatTime(length) : "an instant"}, at ${formatTime(found.spot.start_ns)}`, where];
  }
  if (found.kind === "values") {
    const [first, second] = found.lines;
    return [
      first ? `${valueText(track, first.mean)}${range(hit, first)}` : "",
      second ? `${valueText(track, second.mean)} reserved` : "",
      track.name,
    ].filter((line) => line !== "");
  }
  const events = found.count === 1 ? "1 event" : `${formatCount(found.count)} events`;
  const kind = info.colours[found.colour] ?? "";
  const mostly = found.busy > 0 && !kind.startsWith("host/") ? `mostly ${kind.replace("/", ": ")}` : "";
  const within = `within ${formatTime(found.end_ns - found.start_ns)}`;
  return [
    found.count === 0 ? `${formatShare(found.busy)} busy` : `${events}, ${formatShare(found.busy)} busy`,
    mostly ? `${within}, ${mostly}` : within,
    where,
  ];
}

function range({ track }: Hit, { low, high }: { low: number; high: number }): string {
  return low === high ? "" : ` (${valueText(track, low)} to ${valueText(track, high)})`;
}

/** Follows the pointer; never takes it. */
export class Tooltip {
  readonly element = el("div", { class: "pane-tooltip", hidden: true, "aria-hidden": "true" });
  private said = "";
  private size = { wide: 0, high: 0, room: { x: 0, y: 0 } };

  /** Show lines beside a point of the pane; none hides it. */
  show(lines: readonly string[], x: number, y: number): void {
    if (lines.length === 0) return this.hide();
    if (this.element.hidden || lines.join("\n") !== this.said) this.write(lines);
    const { wide, high, room } = this.size;
    const left = x + 14 + wide < room.x ? x + 14 : Math.max(4, x - 10 - wide);
    const top = y + 18 + high < room.y ? y + 18 : Math.max(4, y - 12 - high);
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  /** Sizes are asked for only when the text changes: that makes the browser lay the page out. */
  private write(lines: readonly string[]): void {
    this.said = lines.join("\n");
    this.element.hidden = false;
    fill(this.element, ...lines.map((line, index) => el("div", { class: index ? "" : "pane-tooltip-first" }, line)));
    const box = this.element.parentElement;
    const room = { x: box?.clientWidth ?? 0, y: box?.clientHeight ?? 0 };
    this.size = { wide: this.element.offsetWidth, high: this.element.offsetHeight, room };
  }

  hide(): void {
    this.element.hidden = true;
  }
}
