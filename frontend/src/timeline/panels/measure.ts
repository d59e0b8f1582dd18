// GPU work in the selected range or, without a selection, in the visible one.

import { smallButton } from "../../shared/buttons";
import { el, fill } from "../../shared/dom";
import { formatCount, formatShare, formatTime } from "../../shared/format";
import { rested } from "../app/polling";
import { showFault } from "../app/faults";
import { openFlames } from "../app/flames";
import type { CaptureInfo, Measure, TimeRange } from "../types";
import { type Bar, barRow, columnHeads, deviceTitle } from "./bars";
import { copyButton } from "./copying";
import { type Actions, hint, type PanelView, type Subject, unread } from "./view";

const REST_MS = 150;
const HOW = "Drag on the ruler, or Shift + drag on the timeline, to select a range.";

type Device = Measure["devices"][number];

/** The tab of the measurement. */
export class MeasurePanel implements PanelView {
  readonly id = "measure";
  readonly title = "Measure";
  readonly element = el("div", { class: "measure" });
  private readonly head = el("div", {});
  private readonly body = el("div", {});
  private shown = "";
  private info: CaptureInfo | null = null;
  private request: AbortController | null = null;
  private readonly askLater = rested(REST_MS, (info: CaptureInfo, range: TimeRange, marked: boolean) => {
    fill(this.head, this.heading(range, marked));
    void this.ask(info.id, range);
  });

  constructor(private readonly actions: Actions) {
    this.element.append(this.head, this.body);
  }

  update({ capture, mark, view }: Subject): void {
    const range = mark ?? view;
    if (!range || !capture.info) return fill(this.body, unread(capture));
    this.info = capture.info;
    const wanted = `${capture.id}/${range.start_ns}/${range.end_ns}/${mark !== null}`;
    if (wanted === this.shown) return;
    this.shown = wanted;
    if (mark) fill(this.head, this.heading(mark, true)); // at once: it is being drawn
    this.askLater(capture.info, range, mark !== null);
  }

  private heading(range: TimeRange, marked: boolean): HTMLElement {
    const length = range.end_ns - range.start_ns;
    const [from, to] = [range.start_ns, range.end_ns].map((ns) => formatTime(Math.round(ns)));
    return el(
      "header",
      { class: "measure-head" },
      el("p", { class: "kind" }, marked ? "Selected range" : "Visible range"),
      el("p", { class: "headline" }, el("b", { class: "big", data: { ns: length } }, formatTime(Math.round(length)))),
      el("p", { class: "muted" }, `from ${from} to ${to}`),
      this.buttons(range, marked),
      !marked && el("p", { class: "muted" }, HOW),
    );
  }

  private buttons(range: TimeRange, marked: boolean): HTMLElement {
    return el(
      "div",
      { class: "buttons" },
      marked && smallButton("Zoom to selection", () => this.actions.zoom(range), "target"),
      marked && smallButton("Clear selection", () => this.actions.clearMark(), "close"),
      smallButton("Flame graph", () => this.flames(range)),
      marked && copyButton("Copy link", () => location.href, "link"),
    );
  }

  private flames(range: TimeRange): void {
    const { client } = this.actions;
    if (this.info) openFlames(client, this.info, range, this.actions.palette());
  }

  private async ask(id: number, range: TimeRange): Promise<void> {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    try {
      const measured = await this.actions.client.measure(id, range, request.signal);
      if (!request.signal.aborted) this.draw(measured);
    } catch (error) {
      showFault(error);
    }
  }

  private draw(measured: Measure): void {
    const length = measured.end_ns - measured.start_ns;
    const devices = measured.devices.map((device) => this.device(device, length));
    fill(this.body, ...(devices.length ? devices : [hint("The capture shows no GPU work.")]), kernels(measured));
  }

  private device(device: Device, length: number): HTMLElement {
    const palette = this.actions.palette();
    const bars = device.by.map((part) => barOf(part, length));
    const title = deviceTitle(device);
    const busy = ` busy, ${formatTime(device.busy_ns)}`;
    return el(
      "section",
      { class: "block", "aria-label": title },
      el("h3", {}, title),
      el("p", { class: "busy-line" }, el("b", {}, formatShare(device.busy_ns / length)), busy),
      bars.length > 0 && el(
        "table",
        { class: "bars" },
        el("caption", { class: "visually-hidden" }, "GPU time by kind of work; overlapping work counts for each"),
        el("tbody", {}, ...bars.map((bar) => barRow(bar, palette))),
      ),
    );
  }
}

function barOf(part: Device["by"][number], length: number): Bar {
  const more = `${formatCount(part.count)} events`;
  return { key: part.key, name: part.key, ns: part.ns, share: part.ns / length, more };
}

function kernels(measured: Measure): HTMLElement | null {
  if (measured.kernels.length === 0) return null;
  const rows = measured.kernels.map(({ name, count, total_ns }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", title: name }, el("span", { class: "clipped" }, name.replace(/^void /, ""))),
      el("td", { class: "number" }, formatCount(count)),
      el("td", { class: "number" }, formatTime(total_ns)),
    ));
  return el(
    "section",
    { class: "block" },
    el("h3", {}, "Top kernels by time"),
    el("table", { class: "kernels" }, columnHeads("Kernel", "Launches", "Time"), el("tbody", {}, ...rows)),
  );
}
