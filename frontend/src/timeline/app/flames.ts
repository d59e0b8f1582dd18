// The flame graph of a selected or visible range, in a dialogue.

import { iconButton } from "../../shared/buttons";
import { byId, el, fill, prose } from "../../shared/dom";
import { Flame } from "../../shared/flame";
import { formatTime } from "../../shared/format";
import { Tree } from "../../shared/nodes";
import { failure, working } from "../panels/view";
import type { Client } from "../client";
import type { CaptureInfo, Overview, TimeRange, Track } from "../types";
import { takenBack } from "./faults";

const OF = {
  idle: "Idle GPU time", gpu: "GPU time", host: "Host time", launches: "GPU activities launched", memory: "Device memory allocated",
};
const BY = { function: "stacks", line: "stacks, by line", module: "modules", range: "NVTX ranges" };
const HOST_COLORS = 8;

/** Show what the frames of a range are behind: of everything, or of a GPU, a stream or a thread. */
export function openFlames(
  client: Client, info: CaptureInfo, range: TimeRange, palette: Overview["palette"],
): void {
  const dialog = byId<HTMLDialogElement>("flames");
  const body = el("div", {});
  const of = choice("Show", Object.entries(OF));
  const by = choice("by", Object.entries(BY));
  const track = choice("on", [["", "all tracks"], ...trackChoices(info.tracks)]);
  let request: AbortController | null = null;
  const draw = async (): Promise<void> => {
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    fill(body, working("adding up the stacks"));
    try {
      const answer = await client.flame(info.id, range, of.value, by.value, track.value, signal);
      if (signal.aborted) return;
      if (!answer.columns) return fill(body, failure(answer.message));
      const place = el("div", { class: "flame" });
      fill(body, place, ...answer.notes.map((note) => el("p", { class: "note" }, prose(note))));
      for (let at = 0; at < HOST_COLORS; at += 1) {
        const color = palette[`host/${at}`];
        if (color) place.style.setProperty(`--host-${at}`, `light-dark(${color.light}, ${color.dark})`);
      }
      new Flame(place, new Tree(answer.columns));
    } catch (error) {
      if (!takenBack(error)) fill(body, failure(error instanceof Error ? error.message : String(error)));
    }
  };
  for (const box of [of, by, track]) box.addEventListener("change", () => void draw());
  const [length, from] = [range.end_ns - range.start_ns, range.start_ns].map((ns) => formatTime(Math.round(ns)));
  fill(
    dialog,
    el(
      "header", {}, el("h2", { id: "flames-title" }, `Flame graph of ${length} from ${from}`),
      iconButton("Close", "close", () => dialog.close()),
    ),
    el("div", { class: "body" }, el("p", { class: "choices" }, label("Show", of), label("by", by), label("on", track)), body),
  );
  dialog.onclose = () => request?.abort();
  dialog.showModal();
  void draw();
}

/** GPUs, their streams and the threads of the host: the key of a track of each, and its name. */
export function trackChoices(tracks: readonly Track[]): [string, string][] {
  const named = new Map<string, string>();
  for (const { key, kind, group, name, thread } of tracks) {
    const isThread = /^p\d+\/t\d/.test(key);
    const title = kind === "ledger" ? group : kind === "stream" ? `${group} · ${name}` : isThread ? `${group} · ${thread}` : "";
    if (title && !named.has(title)) named.set(title, key);
  }
  return [...named].map(([title, key]) => [key, title]);
}

function choice(name: string, options: readonly (readonly [string, string])[]): HTMLSelectElement {
  const listed = options.map(([value, text]) => el("option", { value }, text));
  return el("select", { "aria-label": name }, ...listed);
}

function label(text: string, box: HTMLSelectElement): HTMLElement {
  return el("label", {}, text, box);
}
