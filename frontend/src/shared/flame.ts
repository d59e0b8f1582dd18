// Ranges or stacks as a flame chart: click or Enter zooms into a node, Escape goes back out.

import { copyText, el, fill, svg } from "./dom";
import { formatBytes, formatCount, formatShare, formatTime } from "./format";
import { Tree, WHOLE, type Columns, type Measure, type Placed } from "./nodes";

const ROW = 22;
const LETTER = 6.7;
const PAD = 6;
const LEAST_PIXELS = 0.6;
const COLORS = 8;
const COPIED_MS = 1500;

/** Draw every flame chart that the page has data for. */
export function startFlames(): void {
  for (const data of document.querySelectorAll<HTMLElement>(".flame-data")) {
    const place = data.previousElementSibling;
    if (place instanceof HTMLElement) new Flame(place, new Tree(JSON.parse(data.textContent ?? "{}") as Columns));
  }
}

/** One flame chart, drawn into a place that it shows. */
export class Flame {
  private root = WHOLE;
  private current = WHOLE;
  private measure: Measure = "host";
  private readonly pointed = el("p", { class: "pointed", "aria-live": "polite" });
  private readonly back = el("button", { type: "button", class: "back" }, "Back");
  private readonly drawing = svg("svg", { role: "application", tabindex: 0 });
  private readonly chart = el("div", { class: "chart" }, this.drawing);
  private readonly count = el("output", { "aria-live": "polite" });
  private matches: ReadonlySet<number> | null = null;

  constructor(place: HTMLElement, private readonly tree: Tree) {
    const noun = tree.columns.noun ?? "range";
    const label = `Flame chart of ${noun}s. Arrow keys move, Enter zooms in, Escape goes back.`;
    this.drawing.setAttribute("aria-label", label);
    const top = el(
      "div", { class: "bar-top" },
      tree.columns.gpu && this.switch(), this.back, ...this.finding(noun), this.pointed,
    );
    const width = { ns: "time", bytes: "memory", count: "how many" }[tree.columns.unit ?? "ns"];
    const hint = `Width is ${width}. Click a ${noun} to zoom in, click its parent to zoom out.`;
    place.append(top, this.chart, el("p", { class: "hint" }, hint));
    place.hidden = false;
    this.back.addEventListener("click", () => this.zoom(this.tree.parent(this.root)));
    this.drawing.addEventListener("click", (event) => this.clicked(event));
    this.drawing.addEventListener("pointermove", (event) => this.tell(this.nodeAt(event) ?? this.root));
    this.drawing.addEventListener("pointerleave", () => this.tell(this.current));
    this.drawing.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.draw()).observe(this.chart);
    this.zoom(WHOLE);
  }

  private switch(): HTMLElement {
    const make = (measure: Measure, name: string): HTMLButtonElement => {
      const button = el("button", { type: "button", "aria-pressed": String(measure === this.measure) }, name);
      button.addEventListener("click", () => {
        this.measure = measure;
        for (const child of group.children) child.setAttribute("aria-pressed", String(child === button));
        this.zoom(this.root);
      });
      return button;
    };
    const group = el("div", { class: "switch", role: "group", "aria-label": "Width shows" });
    group.append(make("host", "Host time"), make("gpu", "GPU work"));
    return group;
  }

  /** A field that marks nodes by name, and a button that copies what is shown as text. */
  private finding(noun: string): HTMLElement[] {
    const field = el("input", { type: "search", placeholder: `Search ${noun}s`, "aria-label": `Search ${noun}s` });
    field.addEventListener("input", () => {
      const hits = field.value.trim() ? this.tree.search(field.value.trim(), this.measure) : null;
      this.matches = hits?.matches ?? null;
      const share = (hits?.sum ?? 0) / Math.max(1, this.tree.value(WHOLE, this.measure));
      this.count.textContent = hits ? `${formatCount(hits.matches.size)} found, ${formatShare(share)}` : "";
      this.draw();
    });
    const copy = el("button", { type: "button", class: "back" }, "Copy as text");
    copy.addEventListener("click", () => {
      const text = this.tree.outline(this.root, this.measure, (value) => this.write(value));
      void copyText(text).then((copied) => {
        copy.textContent = copied ? "Copied" : "Not allowed";
        setTimeout(() => { copy.textContent = "Copy as text"; }, COPIED_MS);
      });
    });
    return [field, this.count, copy];
  }

  private write(value: number): string {
    const { unit } = this.tree.columns;
    if (unit === "bytes") return formatBytes(value);
    return unit === "count" ? formatCount(value) : formatTime(value);
  }

  private zoom(node: number): void {
    this.root = this.tree.value(node, this.measure) > 0 ? node : WHOLE;
    this.current = this.root;
    this.back.disabled = this.root === WHOLE;
    this.draw();
    this.tell(this.root);
  }

  private clicked(event: MouseEvent): void {
    const node = this.nodeAt(event);
    if (node !== null) this.zoom(node === this.root ? this.tree.parent(node) : node);
  }

  private nodeAt(event: Event): number | null {
    const element = (event.target as Element).closest<SVGElement>("[data-node]");
    return element ? Number(element.dataset["node"]) : null;
  }

  private pressed(event: KeyboardEvent): void {
    const to = this.after(event.key);
    if (to === null) return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === "Escape" || event.key === "Home") return this.zoom(to);
    this.current = to;
    this.draw();
    this.tell(to);
  }

  /** Where a key leads: to another node, or to the one that is zoomed into. */
  private after(key: string): number | null {
    const { tree, current, measure } = this;
    const parent = current === WHOLE ? WHOLE : tree.parent(current);
    const beside = current === WHOLE ? [] : this.wide(parent);
    const at = beside.indexOf(current);
    switch (key) {
      case "ArrowDown": return this.wide(current)[0] ?? current;
      case "ArrowUp": return parent;
      case "ArrowRight": return beside[at + 1] ?? current;
      case "ArrowLeft": return beside[at - 1] ?? current;
      case "Enter": return tree.value(current, measure) > 0 ? current : null;
      case "Escape": return this.root === WHOLE ? null : tree.parent(this.root);
      case "Home": return WHOLE;
      default: return null;
    }
  }

  private wide(node: number): number[] {
    return this.tree.children(node, this.measure).filter((child) => this.tree.value(child, this.measure) > 0);
  }

  private tell(node: number): void {
    const { tree } = this;
    const { host, gpu, calls, noun, before } = tree.columns;
    const ranges = [
      `host ${formatTime(host[node])}`, ...(gpu ? [`GPU ${formatTime(gpu[node])}`] : []), `${formatCount(calls[node])} calls`,
    ];
    const frames = [this.write(host[node] ?? 0), ...(before ? [`before ${this.write(before[node] ?? 0)}`] : [])];
    const parts = node === WHOLE ? [this.write(tree.value(WHOLE, this.measure))] : [
      ...(noun ? frames : ranges),
      `${formatShare(tree.value(node, this.measure) / Math.max(1, tree.value(WHOLE, this.measure)))} of total`,
    ];
    fill(this.pointed, el("b", {}, tree.name(node)), ` ${parts.join(" · ")}`);
  }

  private draw(): void {
    const width = this.chart.clientWidth || 800;
    const placed = this.tree.layout(this.root, this.measure, LEAST_PIXELS / width);
    const rows = placed.reduce((most, frame) => Math.max(most, frame.row + 1), 1);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${rows * ROW}`);
    this.drawing.setAttribute("height", String(rows * ROW));
    this.drawing.replaceChildren(...placed.map((frame) => this.box(frame, width)));
  }

  private box(frame: Placed, width: number): SVGElement {
    const name = this.tree.name(frame.node);
    const x = frame.left * width;
    const wide = frame.width * width;
    const box = svg("rect", { x, y: frame.row * ROW, width: Math.max(wide, 1), height: ROW - 1, rx: 2 });
    const change = this.tree.change(frame.node);
    box.style.setProperty("fill", change === null ? `var(--host-${colorOf(name)})` : changeColor(change));
    const kinds = {
      above: frame.above,
      current: frame.node === this.current,
      library: this.tree.columns.library?.[frame.node] ?? false,
      found: this.matches?.has(frame.node) ?? false,
      other: this.matches !== null && !this.matches.has(frame.node),
    };
    const kind = Object.entries(kinds).filter(([, is]) => is).map(([word]) => word).join(" ");
    const group = svg("g", { "data-node": frame.node, class: kind }, box);
    const letters = Math.floor((wide - 2 * PAD) / LETTER);
    if (letters >= 3) {
      const text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
      group.append(svg("text", { x: x + PAD, y: frame.row * ROW + 15 }, text));
    }
    return group;
  }
}

/** The same name has the same color everywhere. */
function colorOf(name: string): number {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + (letter.codePointAt(0) ?? 0)) >>> 0;
  return hash % COLORS;
}

/** Red where it grew, blue where it shrank, gray where little changed. */
function changeColor(change: number): string {
  const part = Math.round(Math.min(1, Math.abs(change)) * 100);
  const color = change > 0 ? "var(--idle-synchronizing)" : "var(--compute-matmul)";
  return `color-mix(in srgb, ${color} ${part}%, var(--quiet))`;
}
