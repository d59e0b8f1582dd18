// Colors as the numbers that pixels are: red in the lowest byte, as on every machine with a browser.

export type Pixel = number;

/** A color as a pixel: `#rrggbb`, or `rgb(…)` as browsers write what they computed. */
export function pixelOf(text: string): Pixel {
  const hex = /^#([0-9a-f]{6})$/i.exec(text.trim())?.[1];
  if (hex !== undefined) {
    const value = Number.parseInt(hex, 16);
    return packed((value >> 16) & 255, (value >> 8) & 255, value & 255);
  }
  const [red, green, blue] = /^rgba?\((.*)\)$/.exec(text.trim())?.[1]?.match(/[\d.]+/g)?.map(Number) ?? [];
  if (red === undefined || green === undefined || blue === undefined) throw new Error(`Not a color: ${text}`);
  return packed(Math.round(red), Math.round(green), Math.round(blue));
}

/** A color on the way from one to another. */
export function mixed(from: Pixel, to: Pixel, share: number): Pixel {
  const channel = (shift: number): number => {
    const [a, b] = [(from >>> shift) & 255, (to >>> shift) & 255];
    return Math.round(a + (b - a) * share);
  };
  return packed(channel(0), channel(8), channel(16));
}

/** A pixel as CSS writes it. */
export function cssOf(pixel: Pixel): string {
  return `rgb(${pixel & 255} ${(pixel >>> 8) & 255} ${(pixel >>> 16) & 255})`;
}

/** Whether dark ink is easier to read on a color than white: by contrast as WCAG counts it. */
export function wantsDarkInk(pixel: Pixel): boolean {
  const light = luminance(pixel) + 0.05;
  return light / (luminance(DARK_INK) + 0.05) >= 1.05 / light;
}

function luminance(pixel: Pixel): number {
  const linear = (byte: number): number => {
    const share = byte / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(pixel & 255) + 0.7152 * linear((pixel >>> 8) & 255) + 0.0722 * linear((pixel >>> 16) & 255);
}

function packed(red: number, green: number, blue: number): Pixel {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const DARK_INK = packed(16, 21, 28);
/** What is written on slices, dark and light. */
export const INKS = [cssOf(DARK_INK), "rgb(255 255 255)"] as const;
