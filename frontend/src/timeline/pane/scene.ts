// All that a frame is drawn from.

import type { CaptureInfo, Spot, TimeRange } from "../types";
import type { Layout } from "./layout";
import type { Store } from "./store";
import type { Theme } from "./theme";

export interface Scene {
  readonly info: CaptureInfo;
  readonly theme: Theme;
  readonly layout: Layout;
  readonly store: Store;
  readonly view: TimeRange;
  readonly selection: Spot | null;
  readonly links: readonly Spot[];
  readonly mark: TimeRange | null;
  /** In lower case; empty for all. */
  readonly filter: string;
}

/** A canvas and its size: device pixels for drawing, and how many of them are one CSS pixel. */
export interface Surface {
  readonly context: CanvasRenderingContext2D;
  readonly width: number;
  readonly height: number;
  readonly ratio: number;
}

/** Give a canvas this size in CSS pixels, sharp on its screen. */
export function resized(canvas: HTMLCanvasElement, width: number, height: number): Surface {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  canvas.style.width = `${wide / ratio}px`;
  canvas.style.height = `${high / ratio}px`;
  const context = canvas.getContext("2d", { alpha: false });
  if (!context) throw new Error("This browser does not draw on canvases");
  return { context, width: wide, height: high, ratio };
}
