// Kernels by name and by what they do.

import { el } from "../shared/dom";
import { formatCount, formatShare } from "../shared/format";

/** Give every searched table a field for names, and make its categories a choice. */
export function startSearches(): void {
  for (const around of document.querySelectorAll<HTMLElement>(".searched")) start(around);
}

interface Row {
  readonly row: HTMLTableRowElement;
  readonly text: string;
  readonly category: string;
  readonly share: number;
}

function start(around: HTMLElement): void {
  const table = around.querySelector("table");
  const chips = around.querySelector(".chips");
  if (!table || !chips) return;
  const rows = [...(table.tBodies[0]?.rows ?? [])].map(read);
  const field = el("input", { type: "search", placeholder: "Search kernels", "aria-label": "Search kernels" });
  const count = el("output", { "aria-live": "polite" });
  const pressed = new Set<string>();
  const update = (): void => {
    const shown = show(rows, field.value, pressed);
    count.textContent = shown.length === rows.length ? "" : summary(shown, rows.length);
  };
  field.addEventListener("input", update);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !field.value) return;
    field.value = "";
    update();
  });
  for (const chip of chips.querySelectorAll("li")) choosable(chip, pressed, update);
  chips.before(el("div", { class: "search" }, field, count));
}

function read(row: HTMLTableRowElement): Row {
  const share = row.querySelector<HTMLElement>("td.bar")?.dataset["v"];
  return {
    row,
    text: (row.cells[0]?.textContent ?? "").toLowerCase(),
    category: row.dataset["category"] ?? "",
    share: share === undefined ? 0 : Number(share),
  };
}

/** Every word must be in the name. */
function show(rows: readonly Row[], sought: string, categories: ReadonlySet<string>): Row[] {
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((entry) => {
    const wanted = !categories.size || categories.has(entry.category);
    const matches = wanted && words.every((word) => entry.text.includes(word));
    entry.row.hidden = !matches;
    return matches;
  });
}

function summary(shown: readonly Row[], every: number): string {
  const share = shown.reduce((sum, entry) => sum + entry.share, 0);
  return `${formatCount(shown.length)} of ${formatCount(every)} shown, ${formatShare(share)} of kernel time`;
}

function choosable(chip: HTMLElement, pressed: Set<string>, update: () => void): void {
  const category = chip.dataset["category"] ?? "";
  const button = el("button", { type: "button", "aria-pressed": "false" });
  button.append(...chip.childNodes);
  button.addEventListener("click", () => {
    if (!pressed.delete(category)) pressed.add(category);
    button.setAttribute("aria-pressed", String(pressed.has(category)));
    update();
  });
  chip.replaceChildren(button);
}
