// A window as it comes over the wire: the length of a header (uint32, little-endian), the header as
// JSON padded so that the body begins at a multiple of 8, then the columns, each at a multiple of 8.
// Columns are views of the answer: nothing is copied.

import type { TimelineWindow } from "./types";

interface Column {
  readonly type: "u1" | "u2" | "u4" | "f8";
  /** In bytes, from the start of the body. */
  readonly offset: number;
  /** In values. */
  readonly length: number;
}

type Columns = Readonly<Record<string, Readonly<Record<string, Column>>>>;
type Header = Omit<TimelineWindow, "slices" | "bin_sums" | "points"> & { readonly columns: Columns };

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array } as const;
type Arrays = { [T in keyof typeof ARRAYS]: InstanceType<(typeof ARRAYS)[T]> };

/** Bytes before the header. */
const PREFIX = 4;
const ALIGNED = 8;

/** Read a window; throws an Error with the reason where the bytes are not one. */
export function decodeWindow(bytes: ArrayBuffer): TimelineWindow {
  const { header, body } = headerOf(bytes);
  const column = <T extends Column["type"]>(group: string, name: string, type: T): Arrays[T] =>
    read(bytes, body, header.columns[group]?.[name], type, `${group}.${name}`);
  const { start_ns, end_ns, bins, lines, pending, labels } = header;
  return {
    start_ns, end_ns, bins, lines, pending, labels,
    slices: {
      line: column("slices", "line", "u2"),
      start_ns: column("slices", "start_ns", "f8"),
      end_ns: column("slices", "end_ns", "f8"),
      table: column("slices", "table", "u1"),
      row: column("slices", "row", "u4"),
      label: column("slices", "label", "u4"),
      color: column("slices", "color", "u1"),
    },
    bin_sums: {
      line: column("bin_sums", "line", "u2"),
      bin: column("bin_sums", "bin", "u4"),
      busy_ns: column("bin_sums", "busy_ns", "f8"),
      count: column("bin_sums", "count", "u4"),
      color: column("bin_sums", "color", "u1"),
    },
    points: {
      line: column("points", "line", "u2"),
      bin: column("points", "bin", "u4"),
      low: column("points", "low", "f8"),
      high: column("points", "high", "f8"),
      mean: column("points", "mean", "f8"),
    },
  };
}

function headerOf(bytes: ArrayBuffer): { header: Header; body: number } {
  if (bytes.byteLength < PREFIX) throw new Error("The window is cut short: it has no header");
  const length = new DataView(bytes).getUint32(0, true);
  if (PREFIX + length > bytes.byteLength) throw new Error("The window is cut short: its header is not whole");
  const text = new TextDecoder().decode(new Uint8Array(bytes, PREFIX, length));
  return { header: JSON.parse(text) as Header, body: Math.ceil((PREFIX + length) / ALIGNED) * ALIGNED };
}

function read<T extends Column["type"]>(
  bytes: ArrayBuffer, body: number, column: Column | undefined, type: T, name: string,
): Arrays[T] {
  if (column === undefined) throw new Error(`The window has no column ${name}`);
  if (column.type !== type) throw new Error(`Column ${name} is of type ${column.type}, not ${type}`);
  const made = ARRAYS[type];
  const end = body + column.offset + column.length * made.BYTES_PER_ELEMENT;
  if (end > bytes.byteLength) throw new Error(`The window is cut short in column ${name}`);
  return new made(bytes, body + column.offset, column.length) as Arrays[T];
}
