"""What the host did, as tracks: for each thread its ranges, operators, calls and waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.key_index import KeyIndex
from gpusight.analyses.ledger.labels import COMMUNICATION
from gpusight.analyses.timeline.colours import OVERHEAD, SYNCHRONISE, by_call, by_key, by_name
from gpusight.analyses.timeline.family import Family, Part
from gpusight.analyses.timeline.layout import EVENT, kept, lay_out
from gpusight.analyses.timeline.looks import Named, one_line
from gpusight.analyses.timeline.strip import Strip
from gpusight.analyses.timeline.window import Track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.analyses.timeline.colours import Codes
    from gpusight.analyses.timeline.layout import Group, Layout
    from gpusight.analyses.timeline.titles import Titles
    from gpusight.model.trace import Trace

_TIMES = ["start_ns", "end_ns"]
_THREAD = ["process", "thread"]
_BESIDE = "beside"
"""Ranges that do not nest, which stand beside those that do."""
_CALLS = "api_calls"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of track that threads have."""

    kind: str
    table: str
    name: str
    paint: Callable[[pl.Series], Codes]
    named_by: str = "name"
    also: tuple[str, ...] = ()
    """Further columns that decide which thread or track an event stands on."""
    shorten: Callable[[str], str] = one_line


def _wait(kind: str) -> str:
    """Say what was waited for; the kind itself does so where it is not the host that waits."""
    return kind if "wait" in kind else one_line(f"wait for {kind}")


_KINDS = (
    Kind("ranges", "ranges", "", by_name, also=("kind",)),
    Kind("ops", "cpu_ops", "Operators", by_name),
    Kind("python", "python_calls", "Python", by_name),
    Kind(
        "collectives",
        "collectives",
        "Collectives",
        partial(by_key, key=COMMUNICATION),
        also=("side",),
    ),
    Kind("api", _CALLS, "", by_call),
    Kind(
        "syncs",
        "syncs",
        "Waits for the GPU",
        partial(by_key, key=SYNCHRONISE),
        named_by="kind",
        shorten=_wait,
    ),
    Kind("os", "os_calls", "OS calls", by_name),
    Kind("overhead", "overheads", "Profiler overhead", partial(by_key, key=OVERHEAD)),
)
"""In the order in which a thread's tracks stand."""


def reads(trace: Trace) -> dict[str, list[str]]:
    """Give every column that these tracks need."""
    columns = {k.table: [*_TIMES, *_THREAD, k.named_by, *k.also] for k in _KINDS}
    columns["syncs"] = [*_TIMES, "process", "kind", "correlation"]
    if trace.has("syncs"):
        columns[_CALLS].append("correlation")
    return columns


@dataclass(frozen=True, slots=True)
class _Shown:
    """What one thread did of one kind."""

    kind: Kind
    family: Family
    group: Group

    @property
    def process(self) -> int | None:
        return self.group.keys["process"]

    @property
    def thread(self) -> int | None:
        return self.group.keys["thread"]


def threads(trace: Trace, titles: Titles) -> list[Strip]:
    """Give the tracks of all threads: of the process and thread with most calls first."""
    shown = [each for kind in _KINDS if trace.has(kind.table) for each in _shown(trace, kind)]
    strips: list[Strip] = []
    for number, of_process in enumerate(_busiest_first(shown, lambda s: s.process)):
        for position, of_thread in enumerate(_busiest_first(of_process, lambda s: s.thread)):
            prefix = f"p{number}/t{position}"
            strips += [_strip(trace, titles, prefix, each) for each in of_thread]
    return strips


def _shown(trace: Trace, kind: Kind) -> list[_Shown]:
    layout = kept(trace, kind.kind, lambda: _lay_out(trace, kind))
    names = trace.table(kind.table, [kind.named_by])[kind.named_by]
    family = Family(layout, (Part.of(trace, kind.table, Named(names, kind.paint, kind.shorten)),))
    return [_Shown(kind, family, group) for group in layout.groups()]


def _busiest_first(
    shown: Iterable[_Shown], key: Callable[[_Shown], int | None]
) -> list[list[_Shown]]:
    """Put together what has the same key; what made most calls comes first, then most events."""
    together: dict[int | None, list[_Shown]] = {}
    for each in shown:
        together.setdefault(key(each), []).append(each)

    def place(item: tuple[int | None, list[_Shown]]) -> tuple[int, int, int]:
        called = sum(each.group.events for each in item[1] if each.kind.table == _CALLS)
        return -called, -sum(each.group.events for each in item[1]), item[0] or 0

    return [members for _, members in sorted(together.items(), key=place)]


def _strip(trace: Trace, titles: Titles, prefix: str, shown: _Shown) -> Strip:
    kind, group = shown.kind, shown.group
    beside = bool(group.keys.get(_BESIDE))
    track = Track(
        key=f"{prefix}/{kind.kind}{'.beside' if beside else ''}",
        group=titles.process(shown.process),
        kind=kind.kind,
        name=_name(trace, kind, beside=beside),
        tables=(kind.table,),
        lines=group.lines,
        events=group.events,
        thread=titles.thread(shown.thread),
    )
    return Strip(track, shown.family, group.first)


def _name(trace: Trace, kind: Kind, *, beside: bool) -> str:
    """Name a track in the words of the tool that made the capture."""
    advice = advice_for(trace.meta)
    if kind.kind == "ranges":
        name = advice.ranges_name[0].upper() + advice.ranges_name[1:]
        return f"{name}, not nested" if beside else name
    return advice.calls_short if kind.kind == "api" else kind.name


def _lay_out(trace: Trace, kind: Kind) -> Layout:
    if kind.kind == "syncs":
        return lay_out(_syncs(trace), _THREAD)
    frame = trace.table(kind.table, [*_TIMES, *_THREAD, *kind.also]).with_row_index(EVENT)
    if kind.kind == "collectives":
        return lay_out(frame.filter(pl.col("side").cast(pl.String) == "host"), _THREAD)
    if kind.kind == "ranges":
        beside = (pl.col("kind").cast(pl.String) != "push_pop").cast(pl.Int64).alias(_BESIDE)
        return lay_out(frame.with_columns(beside), [*_THREAD, _BESIDE])
    return lay_out(frame, _THREAD)


def _syncs(trace: Trace) -> pl.DataFrame:
    """Give the waits for a GPU, each on the thread of the call that waited where that is known."""
    frame = trace.table("syncs", [*_TIMES, "process", "correlation"]).with_row_index(EVENT)
    calls = trace.table(_CALLS, ["process", "correlation", "thread"])
    if not calls.height:
        return frame.with_columns(pl.lit(None, pl.Int64).alias("thread"))
    index = KeyIndex(calls["process"], calls["correlation"])
    rows = pl.Series(index.find(frame["process"], frame["correlation"]))
    thread = calls["thread"].gather(rows.set(rows < 0, None))
    return frame.with_columns(thread.alias("thread"))
