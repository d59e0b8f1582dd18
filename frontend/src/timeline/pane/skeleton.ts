// The elements of a pane.

import { el } from "../../shared/dom";
import { formatTime } from "../../shared/format";
import type { CaptureInfo } from "../types";
import { labelEdge } from "./label_edge";
import { overviewText } from "./overview";

export interface Skeleton {
  readonly root: HTMLElement;
  readonly overview: HTMLCanvasElement;
  readonly caption: HTMLElement;
  readonly scale: HTMLElement;
  readonly ruler: HTMLCanvasElement;
  /** Scrolls; holds the names and, to their right, the canvas. */
  readonly body: HTMLElement;
  readonly content: HTMLElement;
  readonly area: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  /** Round what is under the pointer. */
  readonly hover: HTMLElement;
  /** The time under the pointer: a line over all tracks, and a flag on the ruler. */
  readonly cursor: HTMLElement;
  readonly flag: HTMLElement;
  readonly message: HTMLElement;
  readonly live: HTMLElement;
}

/** Make the elements; `labels` and `tooltip` are put in their places. */
export function buildSkeleton(info: CaptureInfo, labels: HTMLElement, tooltip: HTMLElement): Skeleton {
  const parts = {
    overview: strip("pane-overview", `The whole capture: ${overviewText(info)}. A brush marks the visible range.`),
    ruler: strip("pane-ruler", "Ruler: times from the capture's origin. Drag to select a range."),
    caption: caption(info),
    scale: el("div", { class: "pane-scale" }, ...["bar", "length", "shown"].map((name) => el("span", { class: `pane-${name}` }))),
    canvas: el("canvas", { class: "pane-canvas", "aria-hidden": "true" }),
    hover: el("div", { class: "pane-hover", hidden: true }),
    cursor: el("div", { class: "pane-cursor", hidden: true }),
    flag: el("div", { class: "pane-flag", hidden: true }),
    message: el("div", { class: "pane-message", role: "status", hidden: true, data: { testid: "pane-message" } }),
    live: el("div", { class: "pane-live", "aria-live": "polite", data: { testid: "pane-live" } }),
  };
  const area = areaOf(info, parts.canvas, parts.hover);
  const content = el("div", { class: "pane-content" }, labels, area);
  const body = el("div", { class: "pane-body", data: { testid: "pane-body" } }, content);
  const root = el(
    "div",
    { class: "pane", data: { testid: "pane", state: "loading" } },
    el("div", { class: "pane-top pane-top-overview" }, parts.caption, parts.overview),
    el("div", { class: "pane-top pane-top-ruler" }, parts.scale, parts.ruler, parts.flag),
    body, labelEdge(), parts.cursor, tooltip, parts.message, parts.live,
  );
  return { root, body, content, area, ...parts };
}

function areaOf(info: CaptureInfo, canvas: HTMLElement, hover: HTMLElement): HTMLElement {
  const keys = "W and S zoom, A and D pan, comma and period go from event to event.";
  const props = {
    class: "pane-area",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "timeline",
    "aria-label": `Timeline of ${info.name}, ${formatTime(info.end_ns - info.start_ns)}. ${keys}`,
    data: { testid: "pane-canvas" },
  };
  const nothing = info.tracks.length === 0 && el("p", { class: "pane-empty" }, "This capture has no events on a timeline.");
  return el("div", props, canvas, hover, nothing);
}

function strip(name: string, label: string): HTMLCanvasElement {
  return el("canvas", { class: name, role: "img", "aria-label": label, data: { testid: name } });
}

function caption(info: CaptureInfo): HTMLElement {
  const length = formatTime(info.end_ns - info.start_ns);
  return el("div", { class: "pane-caption" }, el("b", {}, length), el("span", {}, overviewText(info)));
}
