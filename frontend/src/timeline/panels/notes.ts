// Limitations of a capture, and warnings about it.

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
    const none = hint("No limitations and no warnings.");
    fill(this.element, items.length ? el("ul", { class: "note-list" }, ...items) : none);
  }
}

function failure({ name, state }: Capture): string {
  return `${name} could not be read: ${state.message}`;
}

/** The notes on a capture, each line once. */
export function notesOf(capture: Capture): string[] {
  const notes = [...(capture.info?.notes ?? []), ...(capture.findings?.notes ?? [])];
  return [...new Set(notes)];
}
