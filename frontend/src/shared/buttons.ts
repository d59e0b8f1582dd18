// Buttons, each with a text: visible, or for screen readers and as a tooltip.

import { el, type Props } from "./dom";
import { icon, type Shape } from "./icons";

/** A small button with words, and a drawing before them where one is named. */
export function smallButton(words: string, click: () => void, shape?: Shape): HTMLButtonElement {
  const props = { type: "button", class: "small-button", on: { click } };
  return el("button", props, shape && icon(shape), el("span", {}, words));
}

/** A button that is a drawing; `label` names what it does. */
export function iconButton(label: string, shape: Shape, click: () => void, more: Props = {}): HTMLButtonElement {
  const props = { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click }, ...more };
  return el("button", props, icon(shape));
}
