// What the panels get, and what they can do with the page.

import { el, prose } from "../../shared/dom";
import { capital } from "../../shared/format";
import type { Capture } from "../app/captures";
import type { Client } from "../client";
import type { Overview, Spot, TimeRange } from "../types";

/** What the panels show: the timeline that was last used. */
export interface Subject {
  readonly capture: Capture;
  readonly selection: Spot | null;
  readonly mark: TimeRange | null;
  /** What the pane shows; null while there is none. */
  readonly view: TimeRange | null;
}

/** What a panel may do to the page. */
export interface Actions {
  readonly client: Client;
  palette(): Overview["palette"];
  /** Show a time range, with an event selected or the range marked. */
  jump(range: TimeRange, spot: Spot | null, label: string): void;
  /** Select an event and bring it into view. */
  select(spot: Spot): void;
  /** Show exactly this range. */
  zoom(range: TimeRange): void;
  clearMark(): void;
  /** Draw how the selected event and these belong together. */
  link(spots: readonly Spot[]): void;
}

/** One tab's content. */
export interface PanelView {
  readonly id: string;
  readonly title: string;
  readonly element: HTMLElement;
  /** Show what is known of a subject; called again when more is. */
  update(subject: Subject): void;
}

/** A line where there is nothing to show, and why or what to do. */
export function hint(...lines: readonly string[]): HTMLElement {
  return el("div", { class: "hint" }, ...lines.map((line) => el("p", {}, line)));
}

/** A line while something is being computed. */
export function working(text: string): HTMLElement {
  const line = el("p", {}, `${capital(text)}…`);
  return el("div", { class: "hint", role: "status" }, el("span", { class: "busy" }), line);
}

/** What to show while a capture is being read, or when it could not be; null once its timeline is there. */
export function unread({ info, state }: Capture): HTMLElement | null {
  if (info) return null;
  return state.state === "failed" ? failure(state.message) : working(state.message || "reading the capture");
}

/** Why something is missing. */
export function failure(text: string): HTMLElement {
  return el("div", { class: "hint failed", role: "alert" }, el("p", {}, prose(capital(text))));
}
