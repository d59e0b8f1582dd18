// Light, dark, or as the system has it: one switch, remembered where the browser allows that.

import { el, svg } from "./dom";
import { keep, kept } from "./kept";

export type Theme = "auto" | "light" | "dark";

const ORDER: readonly Theme[] = ["auto", "light", "dark"];
const NAMES: Readonly<Record<Theme, string>> = { auto: "system", light: "light", dark: "dark" };

let chosen: Theme = "auto";

/** Sent to the document when another theme is shown, by choice or because the system changed. */
export const THEME_CHANGED = "gpusight-theme";

/** Show the theme that was chosen before; best called before the page is drawn. */
export function startTheme(): void {
  show(remembered());
  darkSystem().addEventListener("change", () => {
    if (chosen === "auto") tell();
  });
}

/** Show a theme and remember it. */
export function chooseTheme(theme: Theme): void {
  show(theme);
  keep("theme", theme);
  tell();
}

/** Whether dark colors are shown now. */
export function isDark(): boolean {
  return chosen === "dark" || (chosen === "auto" && darkSystem().matches);
}

/** A button that goes from one theme to the next. */
export function themeButton(): HTMLButtonElement {
  const button = el("button", {
    type: "button",
    class: "icon-button theme-button",
    on: { click: () => chooseTheme(next(chosen)) },
  });
  const refresh = (): void => {
    const label = `Colors: ${NAMES[chosen]}. Change to ${NAMES[next(chosen)]}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(picture(chosen));
  };
  document.addEventListener(THEME_CHANGED, refresh);
  refresh();
  return button;
}

function next(theme: Theme): Theme {
  return ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length] ?? "auto";
}

/** CSS follows `data-theme` of the root; without it, the system. */
function show(theme: Theme): void {
  chosen = theme;
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

function tell(): void {
  document.dispatchEvent(new CustomEvent(THEME_CHANGED));
}

function darkSystem(): MediaQueryList {
  return window.matchMedia("(prefers-color-scheme: dark)");
}

function remembered(): Theme {
  const before = kept("theme");
  return ORDER.find((theme) => theme === before) ?? "auto";
}

const SHAPES: Readonly<Record<Theme, string>> = {
  auto: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 1.4v9.2a4.6 4.6 0 0 1 0-9.2Z",
  light:
    "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM7.3 1h1.4v2H7.3zM7.3 13h1.4v2H7.3zM1 7.3h2v1.4H1zM13 7.3h2v1.4h-2z" +
    "M2.6 3.6l1-1L5 4 4 5zM11 12l1-1 1.4 1.4-1 1zM11 4l1.4-1.4 1 1L12 5zM2.6 12.4 4 11l1 1-1.4 1.4z",
  dark: "M6.2 2A6.2 6.2 0 1 0 14 9.8 5 5 0 0 1 6.2 2Z",
};

function picture(theme: Theme): SVGSVGElement {
  const shape = svg("path", { d: SHAPES[theme], fill: "currentColor", "fill-rule": "evenodd" });
  return svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, shape);
}
