// The few drawings on buttons; each button also has a text.

import { svg } from "./dom";

const SHAPES = {
  close: "M4 4l8 8M12 4l-8 8",
  panel: "M2.5 3h11v10h-11zM9.5 3v10",
  help: "M5.6 6a2.4 2.4 0 1 1 3.6 2.1c-.8.5-1.2.9-1.2 1.9M8 12.6v.1",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM10.4 10.4 14 14",
  target: "M8 3.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM8 1v4M8 11v4M1 8h4M11 8h4",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  link: "M6.5 9.5l3-3M7 4.5l1.4-1.4a3 3 0 0 1 4.4 4.4L11.4 9M9 11.5l-1.4 1.4a3 3 0 0 1-4.4-4.4L4.6 7",
} as const;

/** What can be drawn. */
export type Shape = keyof typeof SHAPES;

/** A drawing in the color of the text around it, unseen by screen readers. */
export function icon(name: Shape): SVGSVGElement {
  const line = svg("path", {
    d: SHAPES[name], fill: "none", stroke: "currentColor", "stroke-width": 1.5,
    "stroke-linecap": "round", "stroke-linejoin": "round",
  });
  return svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, line);
}
