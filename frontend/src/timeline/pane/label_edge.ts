// The edge between names and tracks: dragged, or moved by arrow keys; the same for all panes of the page.

import { el } from "../../shared/dom";
import { keep, kept } from "../../shared/kept";

const WIDTH = { name: "labels-width", least: 110, most: 560, first: 212 } as const;
const STEP = 16;

/** Make the handle, with the width that was chosen before. */
export function labelEdge(): HTMLElement {
  const handle = el("div", {
    class: "pane-edge", role: "separator", tabindex: 0, "aria-label": "Width of the names", "aria-orientation": "vertical",
    "aria-valuemin": WIDTH.least, "aria-valuemax": WIDTH.most, title: "Drag to make room for long names",
    on: { pointerdown: (event) => drag(handle, event), keydown: (event) => key(handle, event) },
  });
  const before = Number(kept(WIDTH.name));
  widen(handle, before || WIDTH.first);
  return handle;
}

function widen(handle: HTMLElement, wanted: number): void {
  const width = Math.round(Math.min(WIDTH.most, Math.max(WIDTH.least, wanted)));
  document.documentElement.style.setProperty(`--${WIDTH.name}`, `${width}px`);
  handle.setAttribute("aria-valuenow", String(width));
  handle.setAttribute("aria-valuetext", `${width} pixels`);
}

const widthOf = (handle: HTMLElement): number => Number(handle.getAttribute("aria-valuenow"));

function drag(handle: HTMLElement, event: PointerEvent): void {
  event.preventDefault();
  handle.setPointerCapture(event.pointerId);
  const [from, width] = [event.clientX, widthOf(handle)];
  const move = (moved: PointerEvent): void => widen(handle, width + moved.clientX - from);
  const end = (): void => {
    handle.removeEventListener("pointermove", move);
    keep(WIDTH.name, String(widthOf(handle)));
  };
  handle.addEventListener("pointermove", move);
  handle.addEventListener("lostpointercapture", end, { once: true });
}

function key(handle: HTMLElement, event: KeyboardEvent): void {
  const by = event.key === "ArrowLeft" ? -STEP : event.key === "ArrowRight" ? STEP : 0;
  if (by === 0) return;
  event.preventDefault();
  widen(handle, widthOf(handle) + by);
  keep(WIDTH.name, String(widthOf(handle)));
}
