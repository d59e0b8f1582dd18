// The edge between timeline and panel: dragged, or moved by arrow keys; left of the panel on wide
// screens, above it on narrow ones.

import { keep, kept } from "../../shared/kept";

const WIDTH = { name: "panel-width", least: 280, most: 720, first: 404 } as const;
const HEIGHT = { name: "panel-height", least: 140, most: 620, first: 340 } as const;
const STEP = 24;

/** Below this the panel is a drawer at the bottom. */
export const NARROW = window.matchMedia("(max-width: 760px)");

/** Makes an element the handle that sets `--panel-width` or `--panel-height` of the page. */
export class Divider {
  constructor(private readonly handle: HTMLElement) {
    handle.setAttribute("role", "separator");
    handle.setAttribute("aria-label", "Size of the panel");
    handle.setAttribute("aria-controls", "panel");
    handle.tabIndex = 0;
    handle.addEventListener("pointerdown", (event) => this.drag(event));
    handle.addEventListener("keydown", (event) => this.key(event));
    NARROW.addEventListener("change", () => this.restore());
    this.restore();
  }

  private get side(): typeof WIDTH | typeof HEIGHT {
    return NARROW.matches ? HEIGHT : WIDTH;
  }

  private get size(): number {
    return Number(this.handle.getAttribute("aria-valuenow"));
  }

  private restore(): void {
    const { name, least, first, most } = this.side;
    this.handle.setAttribute("aria-orientation", NARROW.matches ? "horizontal" : "vertical");
    this.handle.setAttribute("aria-valuemin", String(least));
    this.handle.setAttribute("aria-valuemax", String(most));
    this.set(Number(kept(name)) || first);
  }

  private set(wanted: number): void {
    const { name, least, most } = this.side;
    const size = Math.round(Math.min(most, Math.max(least, wanted)));
    document.documentElement.style.setProperty(`--${name}`, `${size}px`);
    this.handle.setAttribute("aria-valuenow", String(size));
    this.handle.setAttribute("aria-valuetext", `${size} pixels`);
  }

  private drag(event: PointerEvent): void {
    event.preventDefault();
    this.handle.setPointerCapture(event.pointerId);
    const [from, size] = [this.along(event), this.size];
    const move = (moved: PointerEvent): void => this.set(size + from - this.along(moved));
    const end = (): void => {
      this.handle.removeEventListener("pointermove", move);
      keep(this.side.name, String(this.size));
    };
    this.handle.addEventListener("pointermove", move);
    this.handle.addEventListener("lostpointercapture", end, { once: true });
  }

  private along(event: PointerEvent): number {
    return NARROW.matches ? event.clientY : event.clientX;
  }

  private key(event: KeyboardEvent): void {
    const larger = NARROW.matches ? "ArrowUp" : "ArrowLeft";
    const smaller = NARROW.matches ? "ArrowDown" : "ArrowRight";
    if (event.key !== larger && event.key !== smaller) return;
    event.preventDefault();
    this.set(this.size + (event.key === larger ? STEP : -STEP));
    keep(this.side.name, String(this.size));
  }
}
