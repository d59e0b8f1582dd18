// Buttons, each with words: seen, or said by a screen reader and shown when pointed at.

import { el, type Props } from "./dom";
import { icon, type Shape } from "./icons";

/** A small button with words, and a drawing before them where one is named. */
export function smallButton(words: string, click: () => void, shape?: Shape): HTMLButtonElement {
  const props = { type: "button", class: "small-button", on: { click } };
  return el("button", props, shape && icon(shape), el("span", {}, words));
}

/** A button that is a drawing; `label` says what it does. */
export function iconButton(label: string, shape: Shape, click: () => void, more: Props = {}): HTMLButtonElement {
  const props = { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click }, ...more };
  return el("button", props, icon(shape));
}
