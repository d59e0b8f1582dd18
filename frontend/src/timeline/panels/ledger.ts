// Where the time of the steps goes, each nanosecond counted once: the numbers of `gpusight ledger`.

import { el, fill } from "../../shared/dom";
import { formatShare, formatTime } from "../../shared/format";
import type { LedgerInfo } from "../types";
import { type Bar, barRow, columnHeads, deviceTitle, stacked } from "./bars";
import { type Actions, failure, hint, type PanelView, type Subject, unread, working } from "./view";

type Device = LedgerInfo["devices"][number];

const GROUPS: Readonly<Record<string, string>> = {
  compute: "Compute",
  copy: "Copies",
  communication: "Communication",
  idle: "Idle",
};

/** The tab of the ledger. */
export class LedgerPanel implements PanelView {
  readonly id = "ledger";
  readonly title = "Ledger";
  readonly element = el("div", { class: "ledger" });
  private drawn: LedgerInfo | null = null;

  constructor(private readonly actions: Actions) {}

  update({ capture }: Subject): void {
    const ledger = capture.ledger;
    if (ledger && ledger === this.drawn) return;
    this.drawn = ledger;
    fill(this.element, ...(ledger ? this.content(ledger) : [unread(capture)]));
  }

  private content(ledger: LedgerInfo): HTMLElement[] {
    if (ledger.state === "computing") return [working(ledger.message || "computing the ledger")];
    if (ledger.state === "failed") return [failure(ledger.message)];
    if (ledger.devices.length === 0) return [hint(ledger.message || "The capture shows no GPU work.")];
    const devices = ledger.devices.map((device) => this.device(device, ledger.steps));
    return ledger.about ? [el("p", { class: "times muted" }, ledger.about), ...devices] : devices;
  }

  private device(device: Device, steps: number): HTMLElement {
    const palette = this.actions.palette();
    const each = Math.max(steps, 1);
    const bars = device.entries.map((entry) => barOf(entry, each));
    const title = deviceTitle(device);
    return el(
      "section",
      { class: "block", data: { device: device.device }, "aria-label": title },
      el("h3", {}, title),
      el("p", { class: "muted" }, span(device, steps)),
      stacked(bars, palette),
      el(
        "table",
        { class: "bars" },
        columnHeads("Entry", steps > 0 ? "Time/step" : "Time", "Share"),
        ...grouped(bars).map(([group, own]) => {
          const parts = own.filter(isPart).map((bar) => barRow(bar, palette));
          return el("tbody", {}, sumRow(GROUPS[group] ?? group, own, "sum-row"), ...parts);
        }),
        el("tfoot", {}, sumRow("Total", bars, "total-row")),
      ),
    );
  }
}

function barOf(entry: Device["entries"][number], steps: number): Bar {
  const rest = entry.entry.slice(entry.entry.indexOf("/") + 1);
  const more = `${entry.entry}: ${formatTime(entry.ns)} total`;
  return { key: entry.entry, name: rest, ns: entry.ns / steps, share: entry.share, more };
}

/** `communication` is a group of its own: its sum is enough. */
function isPart(bar: Bar): boolean {
  return bar.key.includes("/");
}

function grouped(bars: readonly Bar[]): [string, Bar[]][] {
  const groups = new Map<string, Bar[]>();
  for (const bar of bars) {
    const group = bar.key.split("/", 1)[0] ?? bar.key;
    groups.set(group, [...(groups.get(group) ?? []), bar]);
  }
  return [...groups];
}

function sumRow(name: string, bars: readonly Bar[], kind: string): HTMLTableRowElement {
  const { ns, share } = sums(bars);
  return el(
    "tr",
    { class: kind },
    el("th", { scope: "row" }, name),
    el("td", { class: "number", data: { ns } }, formatTime(ns)),
    el("td", { class: "number share" }, formatShare(share)),
  );
}

function sums(bars: readonly Bar[]): { ns: number; share: number | null } {
  const known = bars.filter((bar) => bar.share !== null);
  const share = known.length ? known.reduce((sum, bar) => sum + (bar.share ?? 0), 0) : null;
  return { ns: bars.reduce((sum, bar) => sum + bar.ns, 0), share };
}

function span(device: Device, steps: number): string {
  const ns = device.entries.reduce((sum, entry) => sum + entry.ns, 0);
  if (steps <= 0) return `${formatTime(ns)}, no steps found`;
  return steps === 1 ? `${formatTime(ns)}, 1 step` : `${formatTime(ns)} in ${steps} steps`;
}
