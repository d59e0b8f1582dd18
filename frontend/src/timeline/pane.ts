// The timeline pane: a canvas with its labels, ruler and overview.
//
// For the page and for tests: the page gives keys to `handleKey` (the pane listens for keydown nowhere
// itself). Elements carry `data-testid`: `pane` (with `data-state` loading or ready, `data-start-ns`,
// `data-end-ns`, `data-selected` as table:row, `data-mark-ns` as start-end), `pane-overview`,
// `pane-ruler`, `pane-body` (which scrolls), `pane-canvas` (focusable), `pane-row-group`,
// `pane-row-section` and `pane-row-track` (buttons that fold, with `data-row`: of a track its key),
// `pane-live` and `pane-message`.

import type { Client } from "./client";
import { Core } from "./pane/core";
import { Hands } from "./pane/hands";
import { obey } from "./pane/keys";
import type { CaptureInfo, Overview, Pane } from "./types";

/** Show a capture's timeline in `host`, which gives it its size. */
export function createPane(host: HTMLElement, client: Client, info: CaptureInfo, palette: Overview["palette"]): Pane {
  const core = new Core(host, client, info, palette);
  const hands = new Hands(core);
  return {
    info,
    get view() {
      return core.view;
    },
    setView: (range, options) => core.move(range, options),
    select: (spot, { reveal = false } = {}) => {
      core.choose(spot, false);
      if (spot && reveal) core.reveal(spot);
    },
    setLinks: (spots) => core.setLinks(spots),
    setMeasure: (range) => core.setMark(range, false),
    setFilter: (text) => core.setFilter(text),
    refresh: () => core.refresh(),
    on: (event, handler) => core.on(event, handler),
    handleKey: (event) => obey(event, hands),
    focus: () => core.stage.parts.area.focus({ preventScroll: true }),
    destroy: () => {
      hands.destroy();
      core.destroy();
    },
  };
}
