// The page: timelines on the left, what is known of them on the right, and what connects the two.

import { byId, fill } from "../../shared/dom";
import { formatTime } from "../../shared/format";
import { Client } from "../client";
import { ComparisonPanel } from "../panels/comparison";
import { FindingsPanel } from "../panels/findings";
import { LedgerPanel } from "../panels/ledger";
import { MeasurePanel } from "../panels/measure";
import { NotesPanel, notesOf } from "../panels/notes";
import { RanksPanel } from "../panels/ranks";
import { SelectionPanel } from "../panels/selection";
import type { Actions } from "../panels/view";
import type { Spot, TimeRange } from "../types";
import { type Place, readAddress, writeAddress } from "./address";
import { announce } from "./announcer";
import { type Capture, Captures, type News } from "./captures";
import { CaptureSwitch } from "./capture_switch";
import { around } from "./framing";
import { addTools, nameCaptures } from "./header";
import { buildHelp, openHelp } from "./help";
import { listenForKeys } from "./keys";
import { Linking } from "./linking";
import { rested } from "./polling";
import { Search } from "./search";
import { Side } from "./side";
import { Slot } from "./slot";
import { captureChooser, slotHead } from "./slot_head";

const REST_MS = 250;
/** Timelines at once; more captures are chosen from. */
const MOST_SLOTS = 2;

/** Everything that is on the page, made once. */
export class Page {
  private readonly client = new Client();
  private readonly captures = new Captures(this.client);
  private readonly slots: Slot[] = [];
  private readonly linking = new Linking(this.slots);
  private readonly search: Search;
  private readonly about = new CaptureSwitch((slot) => this.activate(slot));
  private readonly side = new Side(this.about.element);
  private active: Slot | null = null;
  private readonly keepAddress = rested(REST_MS, () => this.writeAddress());

  constructor() {
    this.search = new Search(this.client, {
      capture: () => (this.active?.pane ? this.active.capture.id : null),
      time_ns: () => this.active?.selection?.start_ns ?? this.active?.pane?.view.start_ns ?? 0,
      found: (spot) => this.choose(spot),
      filter: (text) => this.slots.forEach((slot) => slot.pane?.setFilter(text)),
      leave: () => this.active?.pane?.focus(),
    });
    this.addPanels();
    addTools(() => this.help(), this.side.button);
    buildHelp();
    this.listen();
  }

  /** Load the captures and show them as they become ready. */
  start(): void {
    this.captures.on((capture, news) => this.learn(capture, news));
    void this.captures.follow(() => this.layOut());
  }

  private addPanels(): void {
    const actions: Actions = {
      client: this.client,
      palette: () => this.captures.palette,
      jump: (range, spot, label) => this.jump(range, spot, label),
      select: (spot) => this.choose(spot),
      zoom: (range) => this.active?.pane?.setView(range, { smooth: true }),
      clearMark: () => this.clearMark(),
      link: (spots) => this.active?.pane?.setLinks(spots),
    };
    this.side.add(new FindingsPanel(actions));
    this.side.add(new SelectionPanel(actions));
    this.side.add(new MeasurePanel(actions));
    this.side.add(new LedgerPanel(actions));
    this.side.add(new NotesPanel(() => this.captures.all.filter((capture) => capture.state.state === "failed")));
    this.captures.on(() => {
      const ready = (): Capture[] => this.captures.all.filter((capture) => capture.info);
      if (this.captures.all.length > 1) this.side.add(new ComparisonPanel(actions, ready));
      if (this.captures.all.some((capture) => capture.info?.job)) this.side.add(new RanksPanel(actions), true);
    });
  }

  private listen(): void {
    byId("skip").addEventListener("click", () => this.active?.pane?.focus());
    window.addEventListener("hashchange", () => this.followAddress());
    listenForKeys({
      search: () => this.search.focus(),
      help: () => this.help(),
      panel: () => this.side.toggle(),
      escape: () => this.search.clear(),
      timeline: (event) => this.active?.pane?.handleKey(event) ?? false,
    });
  }

  private help(): void {
    openHelp(this.captures.palette);
  }

  /** Make room for the timelines, once the captures are named; one that is there stays. */
  private layOut(): void {
    const places = readAddress(location.hash);
    const shown = this.firstShown(places);
    const before = this.slots.splice(0);
    for (const slot of before.filter((slot) => !shown.includes(slot.capture))) slot.clear();
    this.slots.push(...shown.map((capture) => before.find((slot) => slot.capture === capture) ?? this.slotFor(capture)));
    this.slots.forEach((slot, number) => (slot.number = number));
    this.slots.forEach((slot) => this.drawHead(slot));
    fill(byId("timelines"), ...this.slots.map((slot) => slot.element));
    document.body.dataset["slots"] = String(this.slots.length);
    nameCaptures(this.captures.all);
    this.followAddress();
    const used = places.find((place) => place.event ?? place.mark);
    this.activate(this.slots.find((slot) => slot.capture.id === used?.capture) ?? this.slots[0] ?? null);
  }

  /** The captures of the address, in its order where it names enough of them; else the first. */
  private firstShown(places: readonly Place[]): Capture[] {
    const { all } = this.captures;
    const wanted = [...new Set(places.flatMap((place) => this.captures.byId(place.capture) ?? []))];
    if (wanted.length >= MOST_SLOTS) return wanted.slice(0, MOST_SLOTS);
    const chosen = [...new Set([...wanted, ...all])].slice(0, MOST_SLOTS);
    return all.filter((capture) => chosen.includes(capture));
  }

  private slotFor(capture: Capture): Slot {
    return new Slot(0, capture, this.client, () => this.captures.palette, {
      active: (own) => this.activate(own),
      view: (own, range) => this.moved(own, range),
      select: (own) => this.selected(own),
      mark: (own) => this.marked(own),
    });
  }

  private drawHead(slot: Slot): void {
    const others = this.captures.all;
    const exchange = (capture: Capture): void => this.exchange(slot, capture);
    const chooser = others.length > MOST_SLOTS && captureChooser(slot, others, exchange);
    const controls = slot.number === 0 && others.length > 1 && this.linking.controls;
    fill(slot.head, ...slotHead(slot, others.length > 1, chooser || null), controls);
  }

  private exchange(slot: Slot, capture: Capture): void {
    slot.show(capture);
    this.drawHead(slot);
    this.linking.realign();
    this.activate(slot);
    this.refresh();
    this.keepAddress();
  }

  /** Something of a capture became known. */
  private learn(capture: Capture, news: News): void {
    for (const slot of this.slots.filter((slot) => slot.capture === capture)) {
      slot.show(capture);
      if (news === "info") this.opened(slot);
      if (news === "ledger" && capture.ledger?.state === "ready") slot.pane?.refresh();
    }
    const settled = this.captures.all.every((capture) => capture.state.state === "failed" || capture.info);
    byId("timelines").setAttribute("aria-busy", String(!settled));
    this.refresh();
  }

  private opened(slot: Slot): void {
    this.drawHead(slot);
    nameCaptures(this.captures.all);
    this.linking.realign();
    if (this.active?.capture.state.state === "failed") this.activate(slot);
  }

  private activate(slot: Slot | null): void {
    if (slot === this.active) return;
    this.active = slot;
    for (const other of this.slots) other.element.toggleAttribute("data-active", other === slot);
    this.search.again();
    this.refresh();
  }

  private moved(slot: Slot, range: TimeRange): void {
    this.linking.carry(slot, range);
    if (slot === this.active) this.updatePanel(slot);
    this.keepAddress();
  }

  private selected(slot: Slot): void {
    this.activate(slot);
    if (slot.selection) this.side.show("selection");
    this.refresh();
    this.keepAddress();
  }

  private marked(slot: Slot): void {
    this.activate(slot);
    if (slot.mark) this.side.show("measure");
    this.refresh();
    this.keepAddress();
  }

  private clearMark(): void {
    this.active?.setMark(null);
    this.refresh();
    this.keepAddress();
  }

  /** Show where a finding happens, and stay at the finding. */
  private jump(range: TimeRange, spot: Spot | null, label: string): void {
    const slot = this.active;
    const info = slot?.capture.info;
    if (!slot || !info) return;
    slot.reveal(around(range, info), spot, spot ? null : range);
    announce(`Showing ${label}`);
    this.refresh();
    this.keepAddress();
  }

  /** Select an event that a search or a link led to. */
  private choose(spot: Spot): void {
    const slot = this.active;
    if (!slot?.capture.info) return;
    slot.choose(spot);
    const [length, at] = [spot.end_ns - spot.start_ns, spot.start_ns].map((ns) => formatTime(ns));
    announce(`${spot.name}, ${length}, at ${at}`);
    this.side.show("selection");
    this.refresh();
    this.keepAddress();
  }

  /** Bring the panel up to date. */
  private refresh(): void {
    const slot = this.active;
    if (!slot) return;
    const { capture } = slot;
    this.side.badge("findings", capture.findings?.findings.length ?? 0);
    this.side.badge("notes", notesOf(capture).length);
    this.about.update(this.slots, slot);
    this.updatePanel(slot);
  }

  private updatePanel({ capture, selection, mark, pane }: Slot): void {
    this.side.update({ capture, selection, mark, view: pane ? pane.view : null });
  }

  private followAddress(): void {
    for (const place of readAddress(location.hash)) {
      this.slots.find((slot) => slot.capture.id === place.capture)?.goTo(place);
    }
  }

  private writeAddress(): void {
    const places = this.slots.filter((slot) => slot.pane).map((slot) => slot.place);
    if (places.length) history.replaceState(null, "", writeAddress(places));
  }
}
