// Shows the values of lines, areas and dots at the pointer.

import { el, fill } from "../shared/dom";

/** What `render/charts/chart_page.py` writes next to a chart; its numbers are text already. */
interface Data {
  readonly xs: readonly (readonly number[])[];
  readonly labels: readonly string[];
  readonly series: readonly Series[];
  readonly marks: readonly Mark[];
}

interface Series {
  readonly name: string;
  readonly slot: string;
  readonly kind: string;
  readonly steps: boolean;
  readonly x: number;
  readonly values: readonly string[];
  readonly zero?: string;
}

interface Mark {
  readonly label: string;
  readonly rows: readonly (readonly [string, string])[];
}

/** Make every picture of the page answer to the pointer and to the arrow keys. */
export function startPictures(): void {
  for (const picture of document.querySelectorAll<HTMLElement>("figure.picture")) {
    const data = picture.querySelector(".figure-data");
    const tip = picture.querySelector<HTMLElement>(".tip");
    if (data && tip) new Picture(picture, tip, JSON.parse(data.textContent ?? "{}") as Data);
  }
}

class Picture {
  private current = 0;

  constructor(
    private readonly place: HTMLElement,
    private readonly tip: HTMLElement,
    private readonly data: Data,
  ) {
    for (const drawing of place.querySelectorAll("svg")) {
      const follow = (event: PointerEvent): void => this.follow(drawing, event);
      drawing.addEventListener("pointermove", follow);
      drawing.addEventListener("pointerdown", follow);
      drawing.addEventListener("pointerleave", () => this.hide());
      drawing.addEventListener("blur", () => this.hide());
      drawing.addEventListener("keydown", (event) => this.pressed(drawing, event));
    }
  }

  private follow(drawing: SVGSVGElement, event: PointerEvent): void {
    const target = (event.target as Element).closest<SVGElement>("[data-mark]");
    const number = Number(target?.dataset["mark"] ?? NaN);
    if (this.data.marks[number]?.rows.length) return this.showMark(drawing, number);
    if (!this.data.xs.length) return this.hide();
    const box = drawing.getBoundingClientRect();
    const pixel = ((event.clientX - box.left) / box.width) * drawing.viewBox.baseVal.width;
    this.showAt(drawing, new Scale(drawing).value(pixel));
  }

  private pressed(drawing: SVGSVGElement, event: KeyboardEvent): void {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    const { xs, marks } = this.data;
    if (!by || !(xs.length || marks.length)) return;
    event.preventDefault();
    const first = xs[0];
    if (first) return this.showAt(drawing, first[clamp(this.current + by, first.length)] ?? 0);
    this.current = (this.current + by + marks.length) % marks.length;
    this.showMark(drawing, this.current);
  }

  /** A mark is where its target is: dots of a panel have no place on the x axis. */
  private showMark(drawing: SVGSVGElement, number: number): void {
    const mark = this.data.marks[number];
    const target = drawing.querySelector(`[data-mark="${number}"]`);
    if (!mark || !target) return;
    this.fill(mark.label, mark.rows.map(([name, value]) => row(name, value)));
    this.move(drawing, Number(target.getAttribute("cx")), Number(target.getAttribute("cy")));
  }

  private showAt(drawing: SVGSVGElement, x: number): void {
    const { xs, series, labels } = this.data;
    const rows = series.flatMap((line) => {
      const value = line.values[at(xs[line.x] ?? [], x, line.steps)] ?? "";
      return value === line.zero ? [] : [row(line.name, value, line.slot, line.kind)];
    });
    this.current = at(xs[0] ?? [], x, series[0]?.steps ?? false);
    this.fill(labels[this.current] ?? "", rows);
    this.move(drawing, new Scale(drawing).pixel(x));
  }

  private fill(heading: string, rows: readonly HTMLElement[]): void {
    fill(this.tip, el("b", {}, heading), el("table", {}, ...rows));
    this.tip.hidden = false;
  }

  private move(drawing: SVGSVGElement, pixel: number, y?: number): void {
    const box = drawing.getBoundingClientRect();
    const cursor = drawing.querySelector(".cursor");
    for (const end of ["x1", "x2"]) cursor?.setAttribute(end, String(pixel));
    cursor?.setAttribute("visibility", y === undefined ? "visible" : "hidden");
    const x = (pixel / drawing.viewBox.baseVal.width) * box.width;
    const aside = x > box.width / 2 ? x - this.tip.offsetWidth - 14 : x + 14;
    const left = Math.min(Math.max(aside, 0), box.width - this.tip.offsetWidth);
    this.tip.style.setProperty("left", `${left}px`);
    const top = y === undefined ? box.height * 0.2 : (y / drawing.viewBox.baseVal.height) * box.height - 24;
    this.tip.style.setProperty("top", `${Math.max(top, 0)}px`);
  }

  private hide(): void {
    this.tip.hidden = true;
    for (const line of this.place.querySelectorAll(".cursor")) line.setAttribute("visibility", "hidden");
  }
}

/** From pixels of a drawing to values of its axis, and back. */
class Scale {
  private readonly left: number;
  private readonly right: number;
  private readonly low: number;
  private readonly high: number;
  private readonly log: boolean;

  constructor(drawing: SVGSVGElement) {
    const read = (name: string): number => Number(drawing.dataset[name]);
    [this.left, this.right, this.low, this.high] = [read("left"), read("right"), read("low"), read("high")];
    this.log = drawing.dataset["log"] === "1";
  }

  value(pixel: number): number {
    const part = Math.min(Math.max((pixel - this.left) / (this.right - this.left), 0), 1);
    return this.log ? this.low * (this.high / this.low) ** part : this.low + part * (this.high - this.low);
  }

  pixel(value: number): number {
    const part = this.log
      ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    return this.left + Math.min(Math.max(part, 0), 1) * (this.right - this.left);
  }
}

/** The place of the value that holds at x: the last before it, or the nearest. */
function at(xs: readonly number[], x: number, holds: boolean): number {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((xs[middle] ?? 0) <= x) low = middle;
    else high = middle - 1;
  }
  const next = xs[low + 1];
  return !holds && next !== undefined && next - x < x - (xs[low] ?? 0) ? low + 1 : low;
}

function clamp(place: number, count: number): number {
  return Math.min(Math.max(place, 0), count - 1);
}

function row(name: string, value: string, slot = "", kind = ""): HTMLElement {
  const swatch = slot ? el("i", { class: `key-${slot}` }) : null;
  return el("tr", kind ? { class: kind } : {}, el("td", {}, swatch, name), el("td", {}, value));
}
