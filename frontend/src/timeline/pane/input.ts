// Mouse, wheel and fingers on the tracks. Vertical scrolling is the browser's own.

/** What a pane does with them; places are CSS pixels from the canvas's left edge. */
export interface Pointing {
  hover(event: PointerEvent | null): void;
  click(event: PointerEvent): void;
  doubleClick(event: MouseEvent): void;
  /** Move by so many pixels. */
  drag(x: number, y: number): void;
  /** Show `factor` times as much about a place; `coarse` from a wheel with notches. */
  zoom(x: number, factor: number, coarse: boolean): void;
  /** Mark from one place to another; both as on the screen. */
  mark(from: number, to: number): void;
}

/** Pixels that a pointer may move and still click. */
const STILL = 4;
const NOTCH = 50;
const LINE_PX = 18;

/** Places on an element, whatever it has been scrolled or moved to. */
export function placeOn(element: Element, event: MouseEvent): number {
  return event.clientX - element.getBoundingClientRect().left;
}

/** Wheel: with ctrl or meta (and so by pinching a touchpad) zooms, sideways or with shift pans. */
export function listenToWheel(element: HTMLElement, canvas: HTMLElement, pane: Pointing, always: boolean): void {
  element.addEventListener("wheel", (event) => {
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PX : 1;
    const [across, along] = [event.deltaX * unit, event.deltaY * unit];
    const sideways = event.shiftKey ? across || along : Math.abs(across) > Math.abs(along) ? across : 0;
    if (event.ctrlKey || event.metaKey || (always && !sideways)) {
      const pinch = event.ctrlKey && Math.abs(along) < NOTCH;
      const factor = Math.exp(Math.max(-1, Math.min(1, along * (pinch ? 0.01 : 0.0025))));
      pane.zoom(placeOn(canvas, event), factor, Math.abs(along) >= NOTCH);
    } else if (sideways) pane.drag(-sideways, 0);
    else return; // the browser scrolls
    event.preventDefault();
  }, { passive: false });
}

/** Pointers on the canvas: one drags, marks with shift, or clicks; two pinch. */
export class PointerInput {
  private readonly down = new Map<number, PointerEvent>();
  private pressed: PointerEvent | null = null;
  private moved = false;

  constructor(private readonly canvas: HTMLElement, private readonly pane: Pointing) {
    canvas.addEventListener("pointerdown", this.onDown);
    canvas.addEventListener("pointermove", this.onMove);
    canvas.addEventListener("pointerup", this.onUp);
    canvas.addEventListener("pointercancel", this.onCancel);
    canvas.addEventListener("pointerleave", () => this.pane.hover(null));
    canvas.addEventListener("dblclick", (event) => this.pane.doubleClick(event));
  }

  private readonly onDown = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.down.set(event.pointerId, event);
    this.moved = this.down.size > 1;
    this.pressed = event;
  };

  private readonly onMove = (event: PointerEvent): void => {
    const before = this.down.get(event.pointerId);
    if (before === undefined) return event.pointerType === "touch" ? undefined : this.pane.hover(event);
    if (this.down.size === 2) return this.pinch(event);
    if (!this.moved && this.isStill(event)) return;
    this.moved = true;
    this.down.set(event.pointerId, event);
    this.pane.hover(null);
    this.canvas.dataset["drag"] = this.pressed?.shiftKey ? "mark" : "pan";
    if (this.pressed?.shiftKey) this.pane.mark(placeOn(this.canvas, this.pressed), placeOn(this.canvas, event));
    else this.pane.drag(event.clientX - before.clientX, event.pointerType === "touch" ? 0 : event.clientY - before.clientY);
  };

  private readonly onUp = (event: PointerEvent): void => {
    const clicked = this.down.has(event.pointerId) && !this.moved;
    this.onCancel(event);
    if (clicked) this.pane.click(event);
  };

  private readonly onCancel = (event: PointerEvent): void => {
    this.down.delete(event.pointerId);
    delete this.canvas.dataset["drag"];
  };

  private isStill(event: PointerEvent): boolean {
    const { pressed } = this;
    return pressed !== null && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < STILL;
  }

  /** What lies between the fingers stays there. */
  private pinch(event: PointerEvent): void {
    const spread = (): { apart: number; middle: number } => {
      const [one = 0, other = 0] = [...this.down.values()].map((each) => placeOn(this.canvas, each));
      return { apart: Math.max(20, Math.abs(one - other)), middle: (one + other) / 2 };
    };
    const before = spread();
    this.down.set(event.pointerId, event);
    const after = spread();
    this.pane.drag(after.middle - before.middle, 0);
    this.pane.zoom(after.middle, before.apart / after.apart, false);
  }
}
