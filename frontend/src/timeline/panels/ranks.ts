// All ranks of a job: a heat map of ranks and steps, each cell a way into the timeline, and who is late.

import { el, fill, prose } from "../../shared/dom";
import { capital } from "../../shared/format";
import { poll } from "../app/polling";
import type { HeatCell, RanksInfo, Spot } from "../types";
import { tint } from "./colors";
import { type Actions, type PanelView, type Subject, working } from "./view";

/** What the links of one collective on other ranks are called; the server writes it. */
const SAME = "same collective";

/** The tab of the ranks; the first one of a job. */
export class RanksPanel implements PanelView {
  readonly id = "ranks";
  readonly title = "Ranks";
  readonly element = el("div", { class: "ranks" });
  private requested = -1;
  private chosen = 0;

  constructor(private readonly actions: Actions) {}

  update({ capture }: Subject): void {
    if (!capture.info?.job || this.requested === capture.id) return;
    this.requested = capture.id;
    fill(this.element, working("comparing the ranks"));
    void poll(
      () => this.actions.client.ranks(capture.id),
      (answer) => this.draw(answer, capture.id),
      () => true,
    );
  }

  private draw(answer: RanksInfo, capture: number): void {
    const map = el("div", { class: "heat-map" });
    const show = (): void => fill(map, ...this.heatMap(answer, capture, show));
    show();
    fill(
      this.element,
      el("p", { class: "verdict-line" }, capital(answer.headline)),
      map,
      ...stragglers(answer),
      el("p", { class: "muted" }, `Clocks: aligned by ${answer.alignment}`),
    );
  }

  private heatMap(answer: RanksInfo, capture: number, again: () => void): HTMLElement[] {
    const choices = answer.quantities.map((quantity, index) =>
      el("button", {
        type: "button", class: "small-button", "aria-pressed": String(index === this.chosen),
        on: { click: () => { this.chosen = index; again(); this.pressed()?.focus(); } },
      }, quantity.title));
    const grid = el(
      "div",
      {
        class: "heat-grid", role: "grid", "aria-label": `${answer.quantities[this.chosen]?.title ?? ""}, ranks by steps`,
        on: { click: (event) => this.clicked(event, answer, capture), keydown: (event) => this.key(event, answer, capture) },
      },
      ...answer.rows.map((row, at) => this.row(answer, row, at)),
    );
    const [first, last] = [answer.steps[0], answer.rows[0]?.cells.at(-1)?.step ?? answer.steps.at(-1)];
    return [
      el("div", { class: "heat-choices", role: "group", "aria-label": "What the heat map shows" }, ...choices),
      grid,
      el("p", { class: "heat-steps muted" }, el("span", {}, `step ${first ?? 0}`), el("span", {}, `step ${last ?? 0}`)),
      this.legend(answer),
    ];
  }

  private pressed(): HTMLElement | null {
    return this.element.querySelector<HTMLElement>(".heat-choices [aria-pressed=true]");
  }

  private row(answer: RanksInfo, row: RanksInfo["rows"][number], at: number): HTMLElement {
    const cells = row.cells.map((cell, column) => this.cell(answer, cell, at, column));
    const name = el("span", { role: "rowheader", class: "heat-name" }, `rank ${row.rank}`);
    return el("div", { role: "row", class: "heat-row" }, name, el("span", { class: "heat-cells", role: "presentation" }, ...cells));
  }

  private cell(answer: RanksInfo, cell: HeatCell | null, row: number, column: number): HTMLElement {
    const level = cell?.levels[this.chosen] ?? -1;
    const key = answer.quantities[this.chosen]?.legend[level]?.[0] ?? "";
    const label = cell?.label ?? "no such step";
    return el("span", {
      role: "gridcell", class: "heat-cell tint", tabindex: row === 0 && column === 0 ? 0 : -1, title: label, "aria-label": label,
      data: { row, column, level }, style: tint(this.actions.palette(), key),
    });
  }

  private legend(answer: RanksInfo): HTMLElement {
    const legend = answer.quantities[this.chosen]?.legend ?? [];
    const items = legend.map(([key, text], level) =>
      el("li", {}, el("span", { class: "swatch heat-cell tint", data: { level }, style: tint(this.actions.palette(), key) }), text));
    return el("ul", { class: "heat-legend" }, ...items);
  }

  private clicked(event: Event, answer: RanksInfo, capture: number): void {
    const cell = cellOf(event.target);
    if (!cell) return;
    this.focus(cell);
    void this.go(cell, answer, capture);
  }

  private key(event: KeyboardEvent, answer: RanksInfo, capture: number): void {
    const cell = cellOf(event.target);
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      void this.go(cell, answer, capture);
      return;
    }
    const to = neighbor(event.key, Number(cell.dataset["row"]), Number(cell.dataset["column"]), answer);
    if (!to) return;
    event.preventDefault();
    const next = this.element.querySelector<HTMLElement>(`.heat-grid [data-row="${to.row}"][data-column="${to.column}"]`);
    if (next) this.focus(next);
  }

  /** One cell is the way in for the keyboard: the last one used. */
  private focus(cell: HTMLElement): void {
    for (const other of this.element.querySelectorAll<HTMLElement>(".heat-grid [tabindex='0']")) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  }

  /** Show a step of a rank, with arrows to the other ranks of its longest collective. */
  private async go(cell: HTMLElement, answer: RanksInfo, capture: number): Promise<void> {
    const row = answer.rows[Number(cell.dataset["row"])];
    const step = row?.cells[Number(cell.dataset["column"])];
    if (!row || !step) return;
    const { client } = this.actions;
    const spot = row.shown ? await client.collective(capture, row.rank, step).catch(() => null) : null;
    this.actions.jump(step, spot, step.label);
    if (spot) this.actions.link(await this.others(capture, spot));
  }

  private async others(capture: number, spot: Spot): Promise<readonly Spot[]> {
    const details = await this.actions.client.event(capture, spot.table, spot.row).catch(() => null);
    return (details?.links ?? []).filter((link) => link.relation.startsWith(SAME)).map((link) => link.spot);
  }
}

function cellOf(target: EventTarget | null): HTMLElement | null {
  return target instanceof Element ? target.closest<HTMLElement>(".heat-grid .heat-cell") : null;
}

/** Where a key leads in a grid of ranks and steps; null for other keys, and at the edges. */
export function neighbor(
  key: string, row: number, column: number, { rows, steps }: { rows: readonly unknown[]; steps: readonly unknown[] },
): { row: number; column: number } | null {
  const moves: Readonly<Record<string, readonly [number, number]>> = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, steps.length - 1],
  };
  const to = moves[key];
  if (!to) return null;
  const inside = to[0] >= 0 && to[0] < rows.length && to[1] >= 0 && to[1] < steps.length;
  return inside ? { row: to[0], column: to[1] } : null;
}

function stragglers(answer: RanksInfo): HTMLElement[] {
  if (answer.stragglers.length === 0) return [];
  const items = answer.stragglers.map((straggler) => {
    const rows = straggler.evidence.map(({ value, meaning }) =>
      el("tr", {}, el("th", { scope: "row" }, prose(meaning)), el("td", { class: "number" }, value)));
    return el(
      "section",
      { class: "block straggler", "aria-label": `Rank ${straggler.rank}` },
      el("h4", {}, `Rank ${straggler.rank} is late: ${straggler.cause}`),
      el("p", { class: "gain-numbers" }, el("b", {}, `Saves ${straggler.saved}`), el("span", {}, `${straggler.share} of the step, ${straggler.pattern}`)),
      el("table", { class: "facts" }, el("tbody", {}, ...rows)),
    );
  });
  return [el("section", { class: "block" }, el("h3", {}, "Stragglers"), ...items)];
}
