// The tooltip: describes what is under the pointer, next to it.

import { el, fill } from "../../shared/dom";
import type { Words } from "./words";

/** Follows the pointer; never takes it. */
export class Tooltip {
  readonly element = el("div", { class: "pane-tooltip", hidden: true, "aria-hidden": "true" });
  private text = "";
  private size = { wide: 0, high: 0, room: { x: 0, y: 0 } };

  /** Show words next to a point of the pane; none hides it. */
  show(words: Words | null, x: number, y: number): void {
    if (words === null) return this.hide();
    const text = [...words.lines, words.color?.text].join("\n");
    if (this.element.hidden || text !== this.text) this.write(words, text);
    const { wide, high, room } = this.size;
    const left = x + 14 + wide < room.x ? x + 14 : Math.max(4, x - 10 - wide);
    const top = y + 18 + high < room.y ? y + 18 : Math.max(4, y - 12 - high);
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  /** Sizes are read only when the text changes: that makes the browser lay the page out. */
  private write(words: Words, text: string): void {
    this.text = text;
    this.element.hidden = false;
    fill(this.element, ...words.lines.map((line, index) => el("div", { class: index ? "" : "pane-tooltip-first" }, line)), colorLine(words));
    const box = this.element.parentElement;
    const room = { x: box?.clientWidth ?? 0, y: box?.clientHeight ?? 0 };
    this.size = { wide: this.element.offsetWidth, high: this.element.offsetHeight, room };
  }

  hide(): void {
    this.element.hidden = true;
  }
}

function colorLine({ color }: Words): HTMLElement | null {
  if (color === null) return null;
  const style = { "--tint-light": color.light, "--tint-dark": color.dark };
  return el("div", {}, el("span", { class: "swatch tint", style }), color.text);
}
