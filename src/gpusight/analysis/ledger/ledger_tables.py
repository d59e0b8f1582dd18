"""The ledger as tables: for a screen, and one line per entry for a spreadsheet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.ledger.idle_contributors import IdleContributor, families
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COMPUTE, COPY, IDLE, IdleCause
from gpusight.analysis.steps.step_list import called
from gpusight.errors import UsageError
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpusight.analysis.ledger.device_ledger import LedgerEntry, LedgerPart
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport


_SHARES = (
    Field("compute_share", "Compute", Fmt.SHARE, "Part in which kernels run"),
    Field("copy_share", "Copy", Fmt.SHARE, "Part in which only memcpys or memsets run"),
    Field("communication_share", "Comm", Fmt.SHARE, "Part in which only communication runs"),
    Field("idle_share", "Idle", Fmt.SHARE, "Part in which nothing runs"),
    Field("idle_ns", "Idle time", Fmt.TIME, "Time in which nothing runs"),
    Field("mostly", "Main cause", Fmt.TEXT, "Largest cause of idle time"),
)
_GPU_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("name", "Name", Fmt.NAME, "Name of the GPU", shown=False),
    *_SHARES,
)
_ENTRY_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the window"),
    Field("ns", "Total", Fmt.TIME, "Time in the window, of all steps"),
    Field("step_ns", "Per step", Fmt.TIME, "Time per step; these add up to the step time"),
    Field("entry", "Cause", Fmt.TEXT, "What the time is spent on"),
    Field(
        "mostly",
        "Largest part",
        Fmt.NAME,
        "Precision, memory or host activity",
    ),
)
_IDLE_FIELDS = (
    Field("share", "Of cause", Fmt.SHARE, "Part of the time of this cause"),
    Field("ns", "Total", Fmt.TIME, "Idle time during which it is active, of all steps"),
    Field("count", "Gaps", Fmt.COUNT, "Idle gaps during which it is active"),
    Field("entry", "Cause", Fmt.TEXT, "Cause of the idle time"),
    Field(
        "kind",
        "Kind",
        Fmt.TEXT,
        "Kind of host activity, or `next on GPU`",
    ),
    Field("name", "Name", Fmt.NAME, "Host activity in the gap, or GPU activity that ends it"),
)
_STEP_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("step", "Step", Fmt.NAME, "Which step"),
    Field("duration_ns", "Time", Fmt.TIME, "Part of the step in the window"),
    *_SHARES,
)
LINE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("step", "Step", Fmt.TEXT, "Which step; null for the whole window"),
    Field("number", "Number", Fmt.ID, "Number of the step"),
    Field("entry", "Cause", Fmt.TEXT, "What the time is spent on"),
    Field("ns", "Time", Fmt.TIME, "Time spent on it"),
    Field("share", "Share", Fmt.SHARE, "Part of the window or step"),
)
_GROUPS = (
    (COMPUTE, "Compute", "Part of the window in which kernels run"),
    (COPY, "Copies", "Part in which only memcpys or memsets run"),
    (COMMUNICATION, "Communication", "Part in which only communication runs"),
    (IDLE, "Idle", "Part in which nothing runs"),
)
_OVERLAPS = (
    ("kernels_ns", "Kernels overlap", "Two or more kernels run"),
    ("copy_hidden_ns", "Copies hidden", "Memcpys and memsets that overlap kernels"),
    ("communication_hidden_ns", "Comm. hidden", "Communication that overlaps kernels"),
)
_MIN_ENTRY_SHARE = 0.005
"""Idle causes below this part of the window are not explained on the screen."""
_MIN_CONTRIBUTOR_SHARE = 0.05
"""Contributors below this part of their entry are not shown on the screen."""
_MAX_DEVICES = 4
_KIND_TEXTS = {
    "op": "operator",
    "api call": "API call",
    "os call": "OS call",
    "next": "next on GPU",
}
"""Kinds of contributors that are shown by another name than in JSON."""
_OPTIONAL = frozenset({"step_ns", "copy_share", "communication_share"})


IDLE_MEANINGS = {
    IdleCause.QUEUED: "launched, not started: between kernels, or a stream or event came first",
    IdleCause.SYNCHRONIZING: "the host waited for the GPU",
    IdleCause.ALLOCATING: "the host allocated or freed memory",
    IdleCause.LAUNCHING: "in a launch call",
    IdleCause.SETUP: "the host created contexts or handles, loaded code or built a graph",
    IdleCause.INPUT: "the host read, prepared or waited for data",
    IdleCause.WAITING: "the host waited for another thread or process",
    IdleCause.FRAMEWORK: "operators or Python between launches",
    IdleCause.HOST: "host code without CUDA calls",
    IdleCause.PROFILER: "the profiler itself",
    IdleCause.UNKNOWN: "the capture does not show who launched the next activity",
}


def ledger_page(report: LedgerReport, *, by_step: bool = False) -> Composite:
    """Lay a ledger out for a screen."""
    several = len(report.devices) > 1
    sections = []
    if several:
        gpus = [
            {
                "device": device.ledger.device,
                "name": device.name,
                **_groups({entry.entry: entry.ns for entry in device.ledger.entries}),
            }
            for device in report.devices
        ]
        sections.append(_table("gpus", "By GPU", _GPU_FIELDS, gpus))
    for device in report.devices[:_MAX_DEVICES]:
        title = "Time by cause"
        title = f"GPU {device.ledger.device}: time by cause" if several else title
        command = f"entries_{device.ledger.device}" if several else "entries"
        sections.append(_table(command, title, _ENTRY_FIELDS, _entries(report, device)))
    idlest = max(report.devices, key=lambda device: device.ledger.ns(IDLE))
    if idle := list(_contributors(idlest)):
        title = "Host activity while the GPU is idle"
        title = f"Host activity while GPU {idlest.ledger.device} is idle" if several else title
        sections.append(_table("idle", f"{title}: shares of each cause", _IDLE_FIELDS, idle))
    if by_step:
        steps = []
        for device in report.devices:
            for step, lines in zip(device.steps.steps, device.steps.documents(), strict=True):
                entries = {line["entry"]: line["ns"] for line in lines}
                own = {"step": called(step), "duration_ns": sum(entries.values())}
                steps.append({"device": device.ledger.device, **own, **_groups(entries)})
        sections.append(_table("steps", "By step", _STEP_FIELDS, steps, device=several))
    explained_ns = _MIN_ENTRY_SHARE * (report.ledger.end_ns - report.ledger.start_ns)
    meanings = [
        f"{cause.name.lower()}: {meaning}"
        for cause, meaning in IDLE_MEANINGS.items()
        if any(device.ns(cause.entry) >= explained_ns for device in report.ledger.devices)
    ]
    notes = report.notes
    if meanings:
        notes = (*notes, f"idle causes: {'; '.join(meanings)}")
    if len(report.devices) > _MAX_DEVICES:
        notes = (*notes, f"only {_MAX_DEVICES} GPUs are shown in full; others: --device N")
    return Composite(
        "ledger",
        "Ledger",
        _facts(report),
        tuple(sections),
        meta=report.meta,
        notes=notes,
        window=report.meta["window"],
    )


def ledger_lines_table(report: LedgerReport) -> TableResult:
    """Return one line for each entry of the window, then of each step."""
    parts = [_frame(LINE_FIELDS, [])]
    for device in report.devices:
        window: dict[str, Any] = {"device": device.ledger.device, "step": None, "number": None}
        entries = device.ledger.entries
        rows = [{**window, "entry": e.entry, "ns": e.ns, "share": e.share} for e in entries]
        steps, lines = device.steps.steps, device.steps.lines
        names = pl.Series([step.name for step in steps], dtype=pl.String)
        numbers = pl.Series([step.number for step in steps], dtype=pl.Int64)
        by_step = lines.with_columns(
            device=pl.lit(device.ledger.device, pl.Int64),
            step=names.gather(lines["step"]),
            number=numbers.gather(lines["step"]),
        )
        keys = [field.key for field in LINE_FIELDS]
        parts += [_frame(LINE_FIELDS, rows), by_step.select(keys)]
    return TableResult("ledger", "Ledger", LINE_FIELDS, pl.concat(parts))


def _facts(report: LedgerReport) -> tuple[Fact, ...]:
    steps = len(report.focus.steps)
    window = report.ledger.end_ns - report.ledger.start_ns
    facts = [Fact("window_ns", "Window", window, Fmt.TIME, "Time that shares refer to")]
    if steps:
        how = f"{steps:,} ({report.focus.how})" if report.focus.how else f"{steps:,}"
        facts.append(Fact("steps", "Steps", how, Fmt.TEXT, "Steps in the window"))
    if report.focus.is_of_steps:
        step_ns = report.focus.step_ns
        facts.append(
            Fact("step_ns", "Step time", step_ns, Fmt.TIME, "Length of the window per step")
        )
    names = dict.fromkeys(device.name for device in report.devices if device.name)
    if names:
        facts.append(Fact("gpus", "GPU", ", ".join(names), Fmt.TEXT, "GPUs that did work"))
    busy = sum(device.ledger.busy_share for device in report.devices) / len(report.devices)
    meaning = "Part of the window with GPU work, mean of the GPUs"
    facts.append(Fact("busy_share", "GPU busy", busy, Fmt.SHARE, meaning))
    if len(report.devices) > 1:
        return tuple(facts)
    ledger, overlap = report.devices[0].ledger, report.devices[0].overlap
    facts += [
        Fact(f"{group}_share", label, ledger.ns(group) / window, Fmt.SHARE, meaning)
        for group, label, meaning in _GROUPS
        if window and (ledger.ns(group) or group in {COMPUTE, IDLE})
    ]
    facts += [
        Fact(key, label, getattr(overlap, key), Fmt.TIME, meaning)
        for key, label, meaning in _OVERLAPS
        if getattr(overlap, key)
    ]
    return tuple(facts)


def _groups(entries: dict[str, int]) -> dict[str, Any]:
    """Sum entries up, and name the largest cause of idle time."""
    total = sum(entries.values())
    sums = dict.fromkeys((group for group, _, _ in _GROUPS), 0)
    for entry, ns in entries.items():
        sums[entry.partition("/")[0]] += ns
    idle = {entry: ns for entry, ns in entries.items() if entry.startswith(f"{IDLE}/")}
    shares = {f"{group}_share": ns / total if total else None for group, ns in sums.items()}
    mostly = max(idle, key=lambda entry: idle[entry], default=None)
    return {**shares, "idle_ns": sums[IDLE], "mostly": mostly}


def _entries(report: LedgerReport, device: DeviceLedgerReport) -> list[dict[str, Any]]:
    names = pl.Series([step.name for step in report.focus.steps], dtype=pl.String).unique()
    steps = {*names, *families(names).unique()}
    step_count = len(report.focus.steps)
    return [
        {
            "share": entry.share,
            "ns": entry.ns,
            "step_ns": entry.ns / step_count if step_count else None,
            "entry": entry.entry,
            "mostly": _mostly(device, entry, steps),
        }
        for entry in sorted(device.ledger.entries, key=lambda entry: -entry.ns)
    ]


def _part_text(part: LedgerPart) -> str:
    """Return the memory of copies, or the precision of kernels and what computes it."""
    units = {True: " Tensor Cores", False: " CUDA cores", None: ""}[part.tensor_core]
    return part.memory or f"{part.precision}{units}"


def _mostly(device: DeviceLedgerReport, entry: LedgerEntry, steps: Collection[str]) -> str | None:
    """Return what an entry mostly is: a precision, a kind of memory, a range in the step."""
    if entry.parts:
        part = entry.parts[0]
        return _with_share(_part_text(part), part.ns / entry.ns)
    min_ns = _MIN_CONTRIBUTOR_SHARE * entry.ns
    contributors = device.contributors.get(entry.entry, ())
    large = [c for c in contributors if c.name not in steps and c.ns >= min_ns]
    large = [c for c in large if c.kind != "next"] or large
    if not large:
        return None
    largest = max(large, key=lambda c: c.ns)
    kind = _KIND_TEXTS.get(largest.kind, largest.kind)
    return _with_share(f"{kind} {largest.name}", largest.ns / entry.ns)


def _with_share(words: str, share: float) -> str:
    return words if share == 1 else f"{words} {format_share(share)}"


_PART_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("share", "Of cause", Fmt.SHARE, "Part of the time of this cause"),
    Field("ns", "Total", Fmt.TIME, "Time in the window, of all steps"),
    Field("count", "Gaps", Fmt.COUNT, "Idle gaps during which it is active"),
    Field("kind", "Kind", Fmt.TEXT, "Kind of host activity, or what the kernels and copies use"),
    Field("name", "Name", Fmt.NAME, "Host activity in the gap, or GPU activity that ends it"),
)


def ledger_entry_table(report: LedgerReport, name: str) -> TableResult:
    """List what one entry of the ledger consists of: `idle/framework`, `compute/matmul`."""
    entries = [(device, e) for device in report.devices for e in device.ledger.entries]
    rows = [
        {"device": device.ledger.device, "share": ns / max(1, entry.ns), "ns": ns, **part}
        for device, entry in entries
        if entry.entry == name
        for ns, part in _parts(device, entry)
    ]
    if not rows:
        known = ", ".join(dict.fromkeys(entry.entry for _, entry in entries))
        raise UsageError(f"no entry {name!r} in the ledger", hint=f"entries are {known}")
    total = {f"gpu{d.ledger.device}_ns": e.ns for d, e in entries if e.entry == name}
    table = _table("explain", name, _PART_FIELDS, rows, device=len(report.devices) > 1)
    return replace(table, meta=total)


def _parts(device: DeviceLedgerReport, entry: LedgerEntry) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the parts of an entry with their time; an entry without parts is one itself."""
    for contributor in device.contributors.get(entry.entry, ()):
        kind = _KIND_TEXTS.get(contributor.kind, contributor.kind)
        yield contributor.ns, {"count": contributor.count, "kind": kind, "name": contributor.name}
    for part in entry.parts:
        yield part.ns, {"count": None, "kind": _part_text(part), "name": None}
    if not entry.parts and not device.contributors.get(entry.entry):
        yield entry.ns, {"count": None, "kind": entry.entry, "name": None}


def _contributors(device: DeviceLedgerReport) -> Iterator[dict[str, Any]]:
    """Return the largest contributor of each kind, for the idle entries that matter."""
    for entry in sorted(device.ledger.entries, key=lambda entry: -entry.ns):
        if (entry.share or 0) < _MIN_ENTRY_SHARE:
            continue
        by_kind: dict[str, IdleContributor] = {}
        for contributor in device.contributors.get(entry.entry, ()):
            by_kind.setdefault(contributor.kind, contributor)
        for largest in by_kind.values():
            share = largest.ns / entry.ns
            if share >= _MIN_CONTRIBUTOR_SHARE:
                kind = _KIND_TEXTS.get(largest.kind, largest.kind)
                yield {**largest.document(), "share": share, "entry": entry.entry, "kind": kind}


def _table(
    command: str,
    title: str,
    fields: tuple[Field, ...],
    rows: list[dict[str, Any]],
    *,
    device: bool = True,
) -> TableResult:
    """Make a section; columns without content are hidden."""
    frame = _frame(fields, rows)
    hidden = {key for key in _OPTIONAL.intersection(frame.columns) if not (frame[key] > 0).any()}
    if not device:
        hidden.add("device")
    shown = tuple(replace(f, shown=f.shown and f.key not in hidden) for f in fields)
    return TableResult(command, title, shown, frame)


def _frame(fields: tuple[Field, ...], rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = schema_of(fields)
    schema |= {key: pl.Float64() for key in schema if key == "step_ns"}
    return pl.DataFrame(rows, schema=schema)
