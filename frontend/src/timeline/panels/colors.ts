// Colors of what happens, as the server's palette has them, on light and dark pages.

import type { Overview } from "../types";

type Palette = Overview["palette"];

/** Styles that give an element of class `tint` the color of a key; unknown keys have their group's. */
export function tint(palette: Palette, key: string): Record<string, string> {
  const group = key.split("/", 1)[0] ?? key;
  const tint = palette[key] ?? palette[`${group}/other`] ?? palette[group];
  return tint ? { "--tint-light": tint.light, "--tint-dark": tint.dark } : {};
}
