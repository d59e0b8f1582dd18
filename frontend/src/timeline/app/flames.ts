// The flame graph of a selected or visible range, in a dialogue.

import { iconButton } from "../../shared/buttons";
import { byId, el, fill, prose } from "../../shared/dom";
import { Flame } from "../../shared/flame";
import { formatTime } from "../../shared/format";
import { Tree } from "../../shared/nodes";
import { failure, working } from "../panels/view";
import type { Client } from "../client";
import type { CaptureInfo, Measure, Overview, TimeRange } from "../types";
import { showFault, takenBack } from "./faults";

const OF = {
  idle: "Idle GPU time", gpu: "GPU time", host: "Host time", launches: "GPU activities launched", memory: "Device memory allocated",
};
const BY = { function: "stacks", line: "stacks, by line", module: "modules", range: "NVTX ranges" };
const HOST_COLORS = 8;

/** Show what the frames of a range are behind, on all GPUs or one of them. */
export function openFlames(
  client: Client, info: CaptureInfo, range: TimeRange, palette: Overview["palette"],
): void {
  const dialog = byId<HTMLDialogElement>("flames");
  const body = el("div", {});
  const of = choice("Show", Object.entries(OF));
  const by = choice("by", Object.entries(BY));
  const gpu = choice("on", [["", "all GPUs"]]);
  const addGpus = ({ devices }: Measure): void => {
    for (const { device } of devices) gpu.append(el("option", { value: String(device) }, `GPU ${device}`));
  };
  let request: AbortController | null = null;
  const draw = async (): Promise<void> => {
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    fill(body, working("adding up the stacks"));
    try {
      const answer = await client.flame(info.id, range, of.value, by.value, gpu.value, signal);
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
  for (const box of [of, by, gpu]) box.addEventListener("change", () => void draw());
  const [length, from] = [range.end_ns - range.start_ns, range.start_ns].map((ns) => formatTime(Math.round(ns)));
  fill(
    dialog,
    el(
      "header", {}, el("h2", { id: "flames-title" }, `Flame graph of ${length} from ${from}`),
      iconButton("Close", "close", () => dialog.close()),
    ),
    el("div", { class: "body" }, el("p", { class: "choices" }, label("Show", of), label("by", by), label("on", gpu)), body),
  );
  dialog.onclose = () => request?.abort();
  dialog.showModal();
  void client.measure(info.id, range).then(addGpus, showFault);
  void draw();
}

function choice(name: string, options: readonly (readonly [string, string])[]): HTMLSelectElement {
  const listed = options.map(([value, text]) => el("option", { value }, text));
  return el("select", { "aria-label": name }, ...listed);
}

function label(text: string, box: HTMLSelectElement): HTMLElement {
  return el("label", {}, text, box);
}
