// The panel at the side, or the drawer at the bottom of a narrow screen.

import { iconButton } from "../../shared/buttons";
import { byId } from "../../shared/dom";
import { keep, kept } from "../../shared/kept";
import type { PanelView, Subject } from "../panels/view";
import { Divider, NARROW } from "./divider";
import { Tabs } from "./tabs";

/** Tabs with the panels in them; only the one that is seen is kept up to date. */
export class Side {
  readonly button = iconButton("", "panel", () => this.toggle(), {
    "aria-controls": "panel", "aria-keyshortcuts": "P",
  });
  private readonly tabs = new Tabs((id, byHand) => this.chosen(id, byHand));
  private readonly panels = new Map<string, PanelView>();
  private subject: Subject | null = null;

  /** `about` stands above the tabs. */
  constructor(about: HTMLElement) {
    byId("panel").append(about, this.tabs.list, this.tabs.bodies);
    new Divider(byId("divider"));
    this.open(NARROW.matches ? false : kept("panel") !== "closed");
  }

  /** Add a tab; one that comes first is shown, too. */
  add(panel: PanelView, first = false): void {
    if (this.panels.has(panel.id)) return;
    this.panels.set(panel.id, panel);
    this.tabs.add(panel.id, panel.title, panel.element, first);
    if (first) this.tabs.show(panel.id);
  }

  badge(id: string, count: number): void {
    this.tabs.setBadge(id, count);
  }

  /** Show a tab, and the panel if it was closed. */
  show(id: string): void {
    if (!this.isOpen) this.open(true);
    if (this.tabs.current !== id) this.tabs.show(id);
  }

  /** Show what is known of this timeline. */
  update(subject: Subject): void {
    this.subject = subject;
    this.panels.get(this.tabs.current)?.update(subject);
  }

  get isOpen(): boolean {
    return document.body.dataset["panel"] === "open";
  }

  toggle(): void {
    this.open(!this.isOpen);
    keep("panel", this.isOpen ? "open" : "closed");
  }

  close(): void {
    this.open(false);
  }

  private open(wanted: boolean): void {
    document.body.dataset["panel"] = wanted ? "open" : "closed";
    const label = wanted ? "Hide the panel" : "Show the panel";
    this.button.setAttribute("aria-label", label);
    this.button.title = `${label} (P)`;
    this.button.setAttribute("aria-expanded", String(wanted));
  }

  private chosen(id: string, byHand: boolean): void {
    if (byHand) this.open(true);
    if (this.subject) this.panels.get(id)?.update(this.subject);
  }
}
