// What the server sends, and what the parts of the page pass to each other. Times are nanoseconds from
// the capture's origin, as numbers: exact up to 104 days.

import type { Columns } from "../shared/nodes";

/** GET api/captures */
export interface Overview {
  readonly captures: readonly CaptureState[];
  /** Colors of what `CaptureInfo.colors` names, on light and dark pages. */
  readonly palette: Readonly<Record<string, { readonly light: string; readonly dark: string }>>;
  readonly version: string;
}

export interface CaptureState {
  readonly id: number;
  /** Name of the file, no path. */
  readonly name: string;
  readonly state: "reading" | "ready" | "failed";
  /** What is being done, or why it failed. */
  readonly message: string;
}

export interface Track {
  readonly key: string;
  readonly group: string;
  readonly kind: TrackKind;
  readonly name: string;
  readonly tables: readonly string[];
  readonly lines: number;
  readonly events: number;
  readonly series: boolean;
  readonly unit: string;
  readonly high: number | null;
  readonly thread: string;
}

export type TrackKind =
  | "ledger" | "stream" | "graphs" | "metric" | "memory" | "ranges" | "ops" | "python" | "api"
  | "collectives" | "syncs" | "os" | "overhead";

export interface Step {
  readonly number: number;
  readonly name: string;
  readonly start_ns: number;
  readonly end_ns: number;
  readonly warmup: boolean;
}

/** GET api/captures/{id} */
export interface CaptureInfo {
  readonly id: number;
  readonly name: string;
  readonly tool: string;
  readonly gpus: readonly string[];
  readonly start_ns: number;
  readonly end_ns: number;
  readonly tracks: readonly Track[];
  readonly colors: readonly string[];
  /** Empty where none are known. */
  readonly steps: readonly Step[];
  /** Limitations of the capture. */
  readonly notes: readonly string[];
  /** Times to show first: the first step after warm-up; null for everything. */
  readonly first_view: { readonly start_ns: number; readonly end_ns: number } | null;
  /** Several ranks, which `ranks` compares. */
  readonly job: boolean;
}

/** GET api/captures/{id}/window?start=&end=&bins=&tracks=key,key (binary; see decode.ts) */
export interface TimelineWindow {
  readonly start_ns: number;
  readonly end_ns: number;
  readonly bins: number;
  readonly lines: readonly { readonly track: string; readonly line: number }[];
  readonly pending: readonly string[];
  readonly labels: readonly string[];
  readonly slices: {
    readonly line: Uint16Array;
    readonly start_ns: Float64Array;
    readonly end_ns: Float64Array;
    readonly table: Uint8Array;
    readonly row: Uint32Array;
    readonly label: Uint32Array;
    readonly color: Uint8Array;
  };
  readonly bin_sums: {
    readonly line: Uint16Array;
    readonly bin: Uint32Array;
    readonly busy_ns: Float64Array;
    readonly count: Uint32Array;
    readonly color: Uint8Array;
  };
  readonly points: {
    readonly line: Uint16Array;
    readonly bin: Uint32Array;
    readonly low: Float64Array;
    readonly high: Float64Array;
    readonly mean: Float64Array;
  };
}

/** Where an event stands. */
export interface Spot {
  readonly table: string;
  readonly row: number;
  readonly start_ns: number;
  readonly end_ns: number;
  readonly track: string;
  readonly line: number;
  readonly name: string;
}

/** GET api/captures/{id}/pick?track=&line=&time=&within= : Spot or null */

/** GET api/captures/{id}/event?table=&row= */
export interface EventDetails {
  readonly spot: Spot;
  /** Such as "Kernel", "Copy", "Range". */
  readonly kind: string;
  readonly title: string;
  /** Sections of facts, shown in order; values are formatted by the server. */
  readonly sections: readonly {
    readonly title: string;
    readonly rows: readonly { readonly name: string; readonly value: string; readonly meaning: string }[];
  }[];
  /** Events that belong to it: its launch, operator, range, Python call, the work it launched. */
  readonly links: readonly { readonly relation: string; readonly spot: Spot }[];
}

/** GET api/captures/{id}/search?q=&limit= : names that hold the text, those with most time first. */
export interface SearchResult {
  readonly query: string;
  readonly groups: readonly SearchGroup[];
  /** Names that matched, of which `groups` are the first. */
  readonly total: number;
}

export interface SearchGroup {
  readonly table: string;
  readonly kind: string;
  readonly name: string;
  /** Code of the name in its table, for `next`. */
  readonly code: number;
  readonly count: number;
  readonly total_ns: number;
}

/** GET api/captures/{id}/next?table=&code=&time=&direction=1|-1 : Spot or null (wraps around) */

/** GET api/captures/{id}/measure?start=&end= */
export interface Measure {
  readonly start_ns: number;
  readonly end_ns: number;
  readonly devices: readonly {
    readonly device: number;
    readonly name: string;
    readonly busy_ns: number;
    /** Kernels, copies and so on by color key; where work overlaps each counts for itself. */
    readonly by: readonly { readonly key: string; readonly ns: number; readonly count: number }[];
  }[];
  readonly kernels: readonly { readonly name: string; readonly count: number; readonly total_ns: number }[];
}

/** GET api/captures/{id}/flame?start=&end=&of=&by=&track= */
export interface FlameInfo {
  /** Null where there is nothing to show; `message` has the reason. */
  readonly columns: Columns | null;
  readonly message: string;
  readonly notes: readonly string[];
}

/** GET api/captures/{id}/findings */
export interface Findings {
  readonly state: "computing" | "ready" | "failed";
  readonly message: string;
  /** Step time, or the window where no steps are known; null until ready. */
  readonly step_ns: number | null;
  readonly steps: number;
  /** Whose times these are, where the timeline shows others; empty where it is the same. */
  readonly about: string;
  /** The plan, in the order to fix: what the findings save adds up. */
  readonly findings: readonly FindingInfo[];
  /** `all 4 fixes: 46.9 -> 9.96 ms/step (4.7x)`; empty without a fix. */
  readonly plan: string;
  readonly predicted_step_ns: number | null;
  /** `apply fix 2 (host-sync) before fix 1`. */
  readonly needs: readonly string[];
  /** Findings below the plan, which are no fixes or save too little; titles are whole lines. */
  readonly beside: readonly FindingInfo[];
  /** Fixes of profiled kernels, which save GPU time and are not part of the plan. */
  readonly kernels: readonly FindingInfo[];
  readonly notes: readonly string[];
}

export interface FindingInfo {
  readonly rule: string;
  readonly title: string;
  /** Saved per step after the fixes above; of a profiled kernel, GPU time. Null for no time estimate. */
  readonly saved_ns_per_step: number | null;
  /** The same as a share of the step. */
  readonly share: number | null;
  /** Step time with this fix and those above, and the speedup; null for kernels and without an estimate. */
  readonly predicted_step_ns: number | null;
  readonly speedup: string;
  /** `alone saves 26.2 ms/step (56%); after fix 1 saves 18.0 ms/step (39%)`; empty where both are the same. */
  readonly saving: string;
  readonly confidence: string;
  /** `one line`, `config` or `rewrite`; empty where unknown. */
  readonly effort: string;
  readonly why: string;
  readonly fix: string;
  readonly code: string;
  readonly evidence: readonly { readonly value: string; readonly meaning: string }[];
  /** Where it happens, the clearest first; never empty. */
  readonly places: readonly {
    readonly label: string;
    readonly start_ns: number;
    readonly end_ns: number;
    readonly spot: Spot | null;
  }[];
}

/** GET api/captures/{id}/ledger : of the steps without warm-up, as `gpusight ledger --format json`. */
export interface LedgerInfo {
  readonly state: "computing" | "ready" | "failed";
  readonly message: string;
  readonly steps: number;
  /** As for findings. */
  readonly about: string;
  readonly devices: readonly {
    readonly device: number;
    readonly name: string;
    readonly entries: readonly { readonly entry: string; readonly ns: number; readonly share: number | null }[];
  }[];
}

/** GET api/compare : of the first two captures; `gpusight compare --format json`, shortened. */
export interface CompareInfo {
  readonly state: "computing" | "ready" | "failed" | "none";
  readonly message: string;
  readonly explanation: readonly string[];
  readonly metrics: readonly {
    readonly name: string;
    readonly before: string;
    readonly after: string;
    readonly change: string;
    readonly verdict: string;
  }[];
  readonly notes: readonly string[];
}

/** GET api/captures/{id}/ranks : of a job. GET api/captures/{id}/collective?rank=&start=&end= : Spot or null */
export interface RanksInfo {
  readonly headline: string;
  /** How the clocks were aligned, and how well. */
  readonly alignment: string;
  /** The first step of each column. */
  readonly steps: readonly number[];
  readonly quantities: readonly {
    readonly title: string;
    /** Color key and text of each level. */
    readonly legend: readonly (readonly [string, string])[];
  }[];
  readonly rows: readonly {
    readonly rank: number;
    /** Whether the timeline has it. */
    readonly shown: boolean;
    readonly cells: readonly (HeatCell | null)[];
  }[];
  readonly stragglers: readonly {
    readonly rank: number;
    readonly cause: string;
    readonly saved: string;
    readonly share: string;
    readonly pattern: string;
    readonly evidence: readonly { readonly value: string; readonly meaning: string }[];
  }[];
  readonly notes: readonly string[];
}

/** A rank in a column of the heat map. */
export interface HeatCell {
  readonly step: number;
  readonly start_ns: number;
  readonly end_ns: number;
  /** By quantity: position in its legend; -1 where it is not known. */
  readonly levels: readonly number[];
  readonly label: string;
}

export interface TimeRange {
  readonly start_ns: number;
  readonly end_ns: number;
}

/** Events that a pane sends to the page. */
export interface PaneEvents {
  /** Something was clicked, or the selection was taken back. */
  select: (spot: Spot | null) => void;
  /** A time range was marked by dragging, or the mark was cleared. */
  measure: (range: TimeRange | null) => void;
  /** Another time range is shown. */
  view: (range: TimeRange) => void;
}

/** One capture's timeline: a canvas with its labels, ruler and overview. Made by pane.ts. */
export interface Pane {
  readonly info: CaptureInfo;
  readonly view: TimeRange;
  /** Show a time range; `smooth` glides there where motion is welcome. */
  setView(range: TimeRange, options?: { smooth?: boolean; silent?: boolean }): void;
  /** Mark an event and, with `reveal`, bring it into view (time and track). */
  select(spot: Spot | null, options?: { reveal?: boolean }): void;
  /** Draw arrows between the selection and events that belong to it; empty takes them back. */
  setLinks(spots: readonly Spot[]): void;
  /** Mark a time range, as dragging does. */
  setMeasure(range: TimeRange | null): void;
  /** Draw what does not hold this text in its name faintly; empty for all. */
  setFilter(text: string): void;
  /** Ask for what is shown again, as when a pending track has been computed. */
  refresh(): void;
  on<K extends keyof PaneEvents>(event: K, handler: PaneEvents[K]): void;
  /** Do what a key does on a timeline; returns whether it meant anything. */
  handleKey(event: KeyboardEvent): boolean;
  focus(): void;
  destroy(): void;
}
