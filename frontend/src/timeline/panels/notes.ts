// What could not be told, and what is wrong with a capture.

import { el, fill, prose } from "../../shared/dom";
import { capital } from "../../shared/format";
import type { Capture } from "../app/captures";
import { hint, type PanelView, type Subject } from "./view";

/** The tab of the notes. */
export class NotesPanel implements PanelView {
  readonly id = "notes";
  readonly title = "Notes";
  readonly element = el("div", { class: "notes" });

  private drawn: string | null = null;

  /** `failed` gives the captures that could not be read: that concerns readers of the others too. */
  constructor(private readonly failed: () => readonly Capture[]) {}

  update({ capture }: Subject): void {
    const lines = [...notesOf(capture), ...this.failed().map(failure)];
    if (lines.join("\n") === this.drawn) return;
    this.drawn = lines.join("\n");
    const items = lines.map((line) => el("li", {}, prose(capital(line))));
    const none = hint("Nothing is amiss with this capture, and everything could be told.");
    fill(this.element, items.length ? el("ul", { class: "note-list" }, ...items) : none);
  }
}

function failure({ name, state }: Capture): string {
  return `${name} could not be read: ${state.message}`;
}

/** What is to be said about a capture, each line once. */
export function notesOf(capture: Capture): string[] {
  const said = [...(capture.info?.notes ?? []), ...(capture.findings?.notes ?? [])];
  return [...new Set(said)];
}
