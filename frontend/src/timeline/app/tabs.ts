// Tabs as screen readers and keyboards know them: one stop, arrows move between them.

import { el } from "../../shared/dom";

interface Tab {
  readonly id: string;
  readonly button: HTMLButtonElement;
  readonly badge: HTMLElement;
  readonly body: HTMLElement;
}

/** A row of tabs and what they show. */
export class Tabs {
  readonly list = el("div", {
    class: "tabs", role: "tablist", "aria-label": "What is shown", on: { keydown: (event) => this.move(event) },
  });
  readonly bodies = el("div", { class: "tab-bodies" });
  private readonly all: Tab[] = [];
  private shown = "";

  /** `chosen` is called when another tab is shown, and when one is chosen by hand that was shown. */
  constructor(private readonly chosen: (id: string, byHand: boolean) => void) {}

  get current(): string {
    return this.shown;
  }

  /** Add a tab behind the others, or before them. */
  add(id: string, title: string, content: HTMLElement, first = false): void {
    const badge = el("span", { class: "badge", hidden: true });
    const button = el(
      "button",
      {
        type: "button", role: "tab", id: `tab-${id}`, tabindex: -1,
        "aria-controls": `body-${id}`, "aria-selected": "false", on: { click: () => this.show(id, true) },
      },
      title,
      badge,
    );
    const body = el(
      "div",
      {
        class: "tab-body", role: "tabpanel", id: `body-${id}`, tabindex: 0, hidden: true,
        "aria-labelledby": `tab-${id}`,
      },
      content,
    );
    const tab = { id, button, badge, body };
    if (first) this.all.unshift(tab);
    else this.all.push(tab);
    this.list.insertBefore(button, first ? this.list.firstChild : null);
    this.bodies.append(body);
    if (this.all.length === 1) this.show(id, false);
  }

  has(id: string): boolean {
    return this.all.some((tab) => tab.id === id);
  }

  /** A small number next to a tab's name; zero shows none. */
  setBadge(id: string, count: number): void {
    const tab = this.all.find((tab) => tab.id === id);
    if (!tab) return;
    tab.badge.textContent = String(count);
    tab.badge.hidden = count === 0;
  }

  show(id: string, byHand = false): void {
    this.shown = id;
    for (const tab of this.all) {
      const current = tab.id === id;
      tab.button.setAttribute("aria-selected", String(current));
      tab.button.tabIndex = current ? 0 : -1;
      tab.body.hidden = !current;
      if (current) tab.button.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    this.chosen(id, byHand);
  }

  private move(event: KeyboardEvent): void {
    const at = this.all.findIndex((tab) => tab.id === this.shown);
    const to = destination(event.key, at, this.all.length);
    const tab = to === null ? undefined : this.all[to];
    if (!tab) return;
    event.preventDefault();
    this.show(tab.id, true);
    tab.button.focus();
  }
}

function destination(key: string, at: number, count: number): number | null {
  if (key === "ArrowRight") return (at + 1) % count;
  if (key === "ArrowLeft") return (at - 1 + count) % count;
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : null;
}
