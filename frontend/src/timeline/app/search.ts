// The search box: names as one types, Enter to the next occurrence, Shift+Enter to the one before.

import { iconButton } from "../../shared/buttons";
import { byId, el, fill } from "../../shared/dom";
import { formatCount, formatTime } from "../../shared/format";
import { icon } from "../../shared/icons";
import type { Client } from "../client";
import type { SearchGroup, SearchResult, Spot } from "../types";
import { announce } from "./announcer";
import { showFault } from "./faults";
import { rested } from "./polling";
import { countOf, options } from "./results";

const REST_MS = 120;
const MAX_HITS = 50;

/** What the search needs from the page. */
export interface SearchTarget {
  /** The capture to search; null while none is ready. */
  capture(): number | null;
  /** From where the next occurrence is counted. */
  time_ns(): number;
  found(spot: Spot): void;
  /** Highlight names that contain this text; dim the others. */
  filter(text: string): void;
  /** Back to the timeline. */
  leave(): void;
}

/** The box, its list and the buttons that step through occurrences. */
export class Search {
  private readonly input = el("input", {
    type: "search", id: "query", placeholder: "Search names", autocomplete: "off", spellcheck: "false", maxlength: 200,
    role: "combobox", "aria-label": "Search kernels, ranges, operators and API calls by name", "aria-expanded": "false",
    "aria-controls": "results", "aria-autocomplete": "list", "aria-keyshortcuts": "/",
    on: { input: () => this.typed(), keydown: (event) => this.key(event), focus: () => this.reopen() },
  });
  private readonly count = el("p", { class: "result-total" });
  private readonly list = el("div", { id: "results", role: "listbox", "aria-label": "Search results" });
  private readonly popup = el("div", { class: "results", hidden: true }, this.count, this.list);
  private readonly summary = el("span", { class: "result-summary" });
  private readonly stepper = el(
    "div",
    { class: "stepper", hidden: true },
    this.summary,
    iconButton("Previous occurrence", "up", () => void this.step(-1)),
    iconButton("Next occurrence", "down", () => void this.step(1)),
  );
  private order: SearchGroup[] = [];
  private active = 0;
  private answered = "";
  private request: AbortController | null = null;
  /** Cleared when the list closes: an answer that comes later must not open it again. */
  private wantsList = false;
  private readonly askLater = rested(REST_MS, () => void this.ask());

  constructor(private readonly client: Client, private readonly target: SearchTarget) {
    const key = el("kbd", { "aria-hidden": "true" }, "/");
    const box = el("div", { class: "search-box" }, icon("search"), this.input, key, this.stepper);
    byId("search").append(box, this.popup);
    document.addEventListener("pointerdown", (event) => {
      if (!byId("search").contains(event.target as Node)) this.close();
    });
    byId("search").addEventListener("focusout", (event) => {
      if (!byId("search").contains(event.relatedTarget as Node | null)) this.close();
    });
  }

  get text(): string {
    return this.input.value.trim();
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  /** Forget the search; returns whether there was one. */
  clear(): boolean {
    const had = this.text !== "";
    this.input.value = "";
    this.forget();
    return had;
  }

  /** Search again, as when another capture is looked at. */
  again(): void {
    this.answered = "";
    if (this.text) void this.ask();
  }

  private typed(): void {
    this.wantsList = true;
    if (this.text) this.askLater();
    else this.forget();
  }

  private forget(): void {
    this.request?.abort();
    this.answered = "";
    this.order = [];
    this.stepper.hidden = true;
    this.target.filter("");
    this.close();
  }

  private async ask(): Promise<void> {
    this.askLater.cancel();
    const [id, text] = [this.target.capture(), this.text];
    if (id === null || !text) return;
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    try {
      const result = await this.client.search(id, text, MAX_HITS, request.signal);
      if (!request.signal.aborted) this.show(result, text);
    } catch (error) {
      showFault(error);
    }
  }

  private show(result: SearchResult, text: string): void {
    const { elements, order } = options(result, (index) => this.choose(index));
    this.order = order;
    this.answered = text;
    this.count.textContent = countOf(result);
    fill(this.list, ...elements);
    this.target.filter(order.length ? plain(text) : "");
    this.mark(0);
    this.summarize();
    if (!this.wantsList) return;
    this.open();
    announce(this.count.textContent);
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Enter") void this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "ArrowDown") this.moveTo(1);
    else if (event.key === "ArrowUp") this.moveTo(-1);
    else if (event.key === "Escape") this.escape();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private escape(): void {
    this.clear();
    this.target.leave();
  }

  private moveTo(direction: 1 | -1): void {
    if (this.popup.hidden) return this.open();
    const count = this.order.length;
    if (count) this.mark((this.active + direction + count) % count);
  }

  private mark(index: number): void {
    this.active = index;
    for (const [at, option] of [...this.list.querySelectorAll("[role=option]")].entries()) {
      option.setAttribute("aria-selected", String(at === index));
      if (at === index) option.scrollIntoView({ block: "nearest" });
    }
    if (this.order.length && !this.popup.hidden) this.input.setAttribute("aria-activedescendant", `result-${index}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  private choose(index: number): void {
    this.mark(index);
    void this.step(1);
  }

  /** Go to the next or previous occurrence of the name that is marked. */
  async step(direction: 1 | -1): Promise<void> {
    this.close();
    this.askLater.cancel();
    if (this.answered !== this.text) await this.ask();
    const [id, group] = [this.target.capture(), this.order[this.active]];
    if (id === null || !group) return this.reopen();
    try {
      const spot = await this.client.next(id, group.table, group.code, this.target.time_ns(), direction);
      if (spot) this.target.found(spot);
      if (spot) this.target.filter(spot.name); // from here on what Enter goes through stands out
    } catch (error) {
      showFault(error);
    }
    this.summarize();
  }

  private summarize(): void {
    const group = this.order[this.active];
    this.stepper.hidden = !group;
    this.summary.textContent = group ? `${formatCount(group.count)}× · ${formatTime(group.total_ns)}` : "";
    this.summary.title = group ? `${group.kind} ${group.name}` : "";
  }

  private reopen(): void {
    if (this.text && this.answered === this.text) this.open();
  }

  private open(): void {
    if (!this.answered) return;
    this.wantsList = true;
    this.popup.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark(this.active);
  }

  private close(): void {
    this.wantsList = false;
    this.popup.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}

/** A pattern selects by more than its letters: then nothing is dimmed. */
function plain(text: string): string {
  return /[*?[\]/]/.test(text) ? "" : text;
}
