// Names on slices: cut to what fits, measured once.

const ELLIPSIS = "…";

/** Widths of characters in one font. */
export class Fitter {
  private readonly widths = new Map<string, number>();
  private readonly whole = new Map<string, number>();

  constructor(private readonly measure: (text: string) => number) {}

  /** Width of a whole text. */
  width(text: string): number {
    let known = this.whole.get(text);
    if (known === undefined) {
      if (this.whole.size > 50_000) this.whole.clear();
      known = this.measure(text);
      this.whole.set(text, known);
    }
    return known;
  }

  /** As much of a text as fits, with an ellipsis where it is cut; empty where not even two letters do. */
  fit(text: string, room: number): string {
    if (this.width(text) <= room) return text;
    let used = this.letter(ELLIPSIS);
    let kept = "";
    let letters = 0;
    for (const letter of text) {
      used += this.letter(letter);
      if (used > room) break;
      kept += letter;
      letters++;
    }
    return letters < 2 ? "" : kept.trimEnd() + ELLIPSIS;
  }

  private letter(letter: string): number {
    let known = this.widths.get(letter);
    if (known === undefined) {
      known = this.measure(letter);
      this.widths.set(letter, known);
    }
    return known;
  }
}
