// What things are drawn in: the palette for events, the page's own custom properties for the rest.

import { el } from "../../shared/dom";
import { isDark } from "../../shared/theme";
import type { Overview } from "../types";
import { cssOf, mixed, type Pixel, pixelOf, wantsDarkInk } from "./colors";

/** Colors of events by color code: four shades of each. */
export interface Shades {
  readonly full: Uint32Array;
  /** Behind bars that do not fill their line. */
  readonly tint: Uint32Array;
  /** What does not match a search, and what may or may not. */
  readonly faint: Uint32Array;
  readonly dim: Uint32Array;
}

export interface Theme {
  readonly dark: boolean;
  readonly shades: Shades;
  /** Per color code: whether dark ink is written on it (0) or white (1), as positions in INKS. */
  readonly ink: Uint8Array;
  readonly paper: Pixel;
  readonly band: Pixel;
  readonly section: Pixel;
  readonly line: Pixel;
  readonly grid: Pixel;
  readonly series: Readonly<Record<"metric" | "memory", Pixel>>;
  /** As CSS, for what is written and stroked. */
  readonly css: Readonly<Record<"paper" | "text" | "muted" | "grid" | "accent" | "mark" | "step" | "warm" | "chrome", string>>;
  readonly font: string;
}

type Palette = Overview["palette"];

/** Read the colors that hold now; again whenever light and dark change. */
export function readTheme(host: Element, colors: readonly string[], palette: Palette): Theme {
  const own = reader(host);
  const dark = isDark();
  const paper = own("paper");
  const full = colors.map((key) => colorOf(key, palette, dark, own("unknown")));
  const shade = (share: number): Uint32Array => Uint32Array.from(full, (color) => mixed(paper, color, share));
  return {
    dark,
    shades: { full: Uint32Array.from(full), tint: shade(dark ? 0.26 : 0.2), faint: shade(0.2), dim: shade(0.5) },
    ink: Uint8Array.from(full, (color) => (wantsDarkInk(color) ? 0 : 1)),
    paper,
    band: own("band"),
    section: own("section"),
    line: own("line"),
    grid: own("grid"),
    series: { metric: own("metric"), memory: own("memory") },
    css: {
      paper: cssOf(paper),
      chrome: cssOf(own("chrome")),
      text: cssOf(own("text")),
      muted: cssOf(own("muted")),
      grid: cssOf(own("grid")),
      accent: cssOf(own("accent")),
      mark: cssOf(own("mark")),
      step: cssOf(own("step")),
      warm: cssOf(own("warm")),
    },
    font: getComputedStyle(host).fontFamily || "sans-serif",
  };
}

/** Gives what `--pane-…` properties come to, as they may refer to others and to light and dark. */
function reader(host: Element): (name: string) => Pixel {
  const known = new Map<string, Pixel>();
  return (name) => {
    const before = known.get(name);
    if (before !== undefined) return before;
    const probe = el("span", { style: { color: `var(--pane-${name})` } });
    host.append(probe);
    const made = pixelOf(getComputedStyle(probe).color);
    probe.remove();
    known.set(name, made);
    return made;
  };
}

function colorOf(key: string, palette: Palette, dark: boolean, unknown: Pixel): Pixel {
  const pair = palette[key];
  return pair === undefined ? unknown : pixelOf(dark ? pair.dark : pair.light);
}
