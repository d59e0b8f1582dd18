// What stands above the timelines: which captures, on which GPUs, and the tools of the page.

import { iconButton } from "../../shared/buttons";
import { byId, el, fill } from "../../shared/dom";
import { themeButton } from "../../shared/theme";
import { type Capture, gpuNames } from "./captures";

/** Name the captures, in the page and in the browser's title. */
export function nameCaptures(captures: readonly Capture[]): void {
  const names = captures.map((capture) => capture.name).join(" and ");
  document.title = captures.length ? `${names} · gpusight` : "gpusight";
  const info = captures.length === 1 ? captures[0]?.info : null;
  const about = info && [gpuNames(info.gpus), info.tool].filter(Boolean).join(" · ");
  fill(
    byId("captured"),
    el("span", { class: "captured-name", title: names }, captures.length > 2 ? `${captures.length} captures` : names),
    about && el("span", { class: "captured-about" }, about),
  );
}

/** Buttons at the right: colors, help, panel. */
export function addTools(openHelp: () => void, panelButton: HTMLButtonElement): void {
  const help = iconButton("Keys and colors", "help", openHelp, { title: "Keys and colors (?)", "aria-keyshortcuts": "?" });
  byId("tools").append(themeButton(), help, panelButton);
}
