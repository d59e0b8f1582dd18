// Tables that are sorted by any column. Rows carry their values; what is shown is not parsed.

import { el } from "../shared/dom";

type Order = "ascending" | "descending";

/** Make the headings of every sortable table buttons. */
export function sortableTables(): void {
  for (const table of document.querySelectorAll<HTMLTableElement>("table.sortable")) {
    const heads = [...table.querySelectorAll<HTMLTableCellElement>("thead th")];
    heads.forEach((head, column) => {
      const button = el("button", { type: "button" }, head.textContent ?? "");
      button.addEventListener("click", () => sort(table, heads, column));
      head.replaceChildren(button);
    });
  }
}

/** Numbers go down first, as the largest matter; texts go up. */
function sort(table: HTMLTableElement, heads: readonly HTMLTableCellElement[], column: number): void {
  const head = heads[column];
  const body = table.tBodies[0];
  if (!head || !body) return;
  const first: Order = head.classList.contains("n") ? "descending" : "ascending";
  const other: Order = first === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === first ? other : first;
  for (const head of heads) head.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const keyed = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  keyed.sort((a, b) => compare(a.key, b.key, sign));
  body.append(...keyed.map(({ row }) => row));
}

function keyOf(cell: HTMLTableCellElement | undefined): number | string | null {
  const value = cell?.dataset["v"];
  if (value !== undefined) return Number(value);
  return cell?.classList.contains("n") ? null : (cell?.textContent ?? "");
}

/** What is not known comes last, whichever way. */
function compare(a: number | string | null, b: number | string | null, sign: number): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b));
}

/** Let the keyboard scroll boxes that are wider or taller than their place. */
export function focusableBoxes(): void {
  const boxes = document.querySelectorAll<HTMLElement>(".report, .code pre, .flame .chart");
  const look = (): void => {
    for (const box of boxes) {
      const over = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (over) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  window.addEventListener("resize", look, { passive: true });
  look();
}
