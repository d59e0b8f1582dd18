// A tree of ranges in columns, as the page carries it, and where its nodes lie in a flame chart.

/** What `flame_data` of render/report/ranges.py writes. */
export interface Columns {
  readonly names: readonly string[];
  readonly name: readonly number[];
  readonly parent: readonly number[];
  readonly calls: readonly number[];
  readonly host: readonly number[];
  readonly gpu: readonly number[] | null;
  readonly smaller: readonly number[];
  /** Of a flame graph of stacks: what its values are, what a node is called, and more of each node. */
  readonly unit?: "ns" | "bytes" | "count";
  readonly noun?: string;
  readonly library?: readonly boolean[];
  readonly before?: readonly number[] | null;
}

export type Measure = "host" | "gpu";

/** A node on the screen, in parts of the width. */
export interface Placed {
  readonly node: number;
  readonly row: number;
  readonly left: number;
  readonly width: number;
  /** Whether the node that is zoomed into lies inside it. */
  readonly above: boolean;
}

/** The root node. */
export const WHOLE = -1;

export class Tree {
  private readonly inside: readonly number[][];

  constructor(readonly columns: Columns) {
    const inside: number[][] = Array.from({ length: columns.name.length + 1 }, () => []);
    columns.parent.forEach((parent, node) => inside[parent + 1]?.push(node));
    this.inside = inside;
  }

  get size(): number {
    return this.columns.name.length;
  }

  parent(node: number): number {
    return this.columns.parent[node] ?? WHOLE;
  }

  children(node: number, measure: Measure): number[] {
    const children = [...(this.inside[node + 1] ?? [])];
    return children.sort((a, b) => this.value(b, measure) - this.value(a, measure));
  }

  value(node: number, measure: Measure): number {
    if (node === WHOLE) return (this.inside[0] ?? []).reduce((sum, child) => sum + this.value(child, measure), 0);
    return (measure === "gpu" ? this.columns.gpu?.[node] : this.columns.host[node]) ?? 0;
  }

  name(node: number): string {
    if (node === WHOLE) return "everything";
    const number = this.columns.name[node] ?? -1;
    return this.columns.names[number] ?? `${this.columns.smaller[node] ?? 0} smaller`;
  }

  /** How much a node grew since the other capture, from -1 to 1; null where there is none. */
  change(node: number): number | null {
    const before = this.columns.before?.[node];
    if (before === undefined) return null;
    const now = this.value(node, "host");
    return (now - before) / Math.max(now, before, 1);
  }

  /** The nodes whose names hold a text, and the sum of the outermost of them. */
  search(text: string, measure: Measure): { readonly matches: ReadonlySet<number>; readonly sum: number } {
    const wanted = text.toLowerCase();
    const matches = new Set<number>();
    const covered = new Set<number>();
    let sum = 0;
    for (let node = 0; node < this.size; node += 1) {
      const inside = covered.has(this.parent(node));
      if (inside) covered.add(node);
      if (!this.name(node).toLowerCase().includes(wanted)) continue;
      matches.add(node);
      if (!inside) sum += this.value(node, measure);
      covered.add(node);
    }
    return { matches, sum };
  }

  /** A node and what is inside it as indented lines, the largest first. */
  outline(root: number, measure: Measure, write: (value: number) => string): string {
    const lines: string[] = [];
    const enter = (node: number, depth: number): void => {
      if (node !== WHOLE) lines.push(`${"  ".repeat(depth)}${write(this.value(node, measure))}  ${this.name(node)}`);
      const next = node === WHOLE ? depth : depth + 1;
      for (const child of this.children(node, measure)) if (this.value(child, measure) > 0) enter(child, next);
    };
    enter(root, 0);
    return `${lines.join("\n")}\n`;
  }

  /** From the outermost to the node itself. */
  path(node: number): number[] {
    const path: number[] = [];
    for (let at = node; at !== WHOLE; at = this.parent(at)) path.unshift(at);
    return path;
  }

  /** Lay out the children of a node, and its parents above it; nothing narrower than `least`. */
  layout(root: number, measure: Measure, least: number): Placed[] {
    const path = this.path(root);
    const placed: Placed[] = path.map((node, row) => ({ node, row, left: 0, width: 1, above: node !== root }));
    const whole = this.value(root, measure);
    if (whole > 0) this.below(root, path.length, 0, 1 / whole, measure, least, placed);
    return placed;
  }

  private below(
    node: number, row: number, left: number, scale: number, measure: Measure, least: number, placed: Placed[],
  ): void {
    let at = left;
    for (const child of this.children(node, measure)) {
      const width = this.value(child, measure) * scale;
      if (width < least) break;
      placed.push({ node: child, row, left: at, width, above: false });
      this.below(child, row + 1, at, scale, measure, least, placed);
      at += width;
    }
  }
}
