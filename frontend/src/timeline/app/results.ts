// Names that a search found, by kind, as a list under the search box.

import { el } from "../../shared/dom";
import { formatCount, formatTime } from "../../shared/format";
import type { SearchGroup, SearchResult } from "../types";

/** Group names by kind; kinds are ordered by their first name, which has most time. */
export function byKind(groups: readonly SearchGroup[]): SearchGroup[][] {
  const kinds = new Map<string, SearchGroup[]>();
  for (const group of groups) kinds.set(group.kind, [...(kinds.get(group.kind) ?? []), group]);
  return [...kinds.values()];
}

/** How many names there are, in words. */
export function countOf(result: SearchResult): string {
  if (result.total === 0) return `No match for “${result.query}”`;
  const names = result.total === 1 ? "1 name" : `${formatCount(result.total)} names`;
  const shown = result.groups.length;
  return shown < result.total ? `${names}, top ${shown} by time:` : names;
}

/** What the list shows, and the names in the order in which they stand. */
export interface Options {
  readonly elements: HTMLElement[];
  readonly order: SearchGroup[];
}

/** The options of the list. */
export function options(result: SearchResult, choose: (index: number) => void): Options {
  const order: SearchGroup[] = [];
  const elements = byKind(result.groups).map((kind, number) => {
    const title = el("div", { class: "result-kind", id: `kind-${number}`, role: "presentation" }, kind[0]?.kind ?? "");
    const own = kind.map((group) => option(group, order.push(group) - 1, choose));
    return el("div", { role: "group", "aria-labelledby": title.id }, title, ...own);
  });
  return { elements, order };
}

function option(group: SearchGroup, index: number, choose: (index: number) => void): HTMLElement {
  return el(
    "div",
    {
      class: "result", role: "option", id: `result-${index}`, "aria-selected": "false",
      on: { click: () => choose(index), pointerdown: (event) => event.preventDefault() },
    },
    el("span", { class: "result-name", title: group.name }, group.name),
    el("span", { class: "result-count number" }, `${formatCount(group.count)}×`),
    el("span", { class: "number" }, formatTime(group.total_ns)),
  );
}
