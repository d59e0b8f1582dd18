// What keys mean on a timeline.

import type { Way } from "./motion";

/** What a pane does when a key is pressed. */
export interface Commands {
  hold(way: Way): void;
  scroll(lines: number): void;
  showAll(): void;
  fitSelection(): void;
  markSelection(): void;
  /** Returns whether there was anything to clear. */
  clear(): boolean;
  step(direction: 1 | -1): void;
  neighbor(direction: 1 | -1): void;
}

const WAYS: Readonly<Record<string, Way>> = {
  w: "in", s: "out", a: "left", d: "right", arrowleft: "left", arrowright: "right", "+": "in", "=": "in", "-": "out",
};

const DEEDS: Readonly<Record<string, (commands: Commands) => boolean | void>> = {
  arrowup: (pane) => pane.scroll(-1),
  arrowdown: (pane) => pane.scroll(1),
  pageup: (pane) => pane.scroll(-12),
  pagedown: (pane) => pane.scroll(12),
  "0": (pane) => pane.showAll(),
  home: (pane) => pane.showAll(),
  f: (pane) => pane.fitSelection(),
  m: (pane) => pane.markSelection(),
  escape: (pane) => pane.clear(),
  "[": (pane) => pane.step(-1),
  "]": (pane) => pane.step(1),
  ",": (pane) => pane.neighbor(-1),
  ".": (pane) => pane.neighbor(1),
};

/** The way that a key moves, if it does. */
export function wayOf(event: KeyboardEvent): Way | undefined {
  return WAYS[event.key.toLowerCase()];
}

/** Do what a key means; returns whether it meant anything. */
export function obey(event: KeyboardEvent, commands: Commands): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const way = wayOf(event);
  if (way !== undefined) {
    commands.hold(way);
    return true;
  }
  const deed = DEEDS[event.key.toLowerCase()];
  return deed !== undefined && deed(commands) !== false;
}
