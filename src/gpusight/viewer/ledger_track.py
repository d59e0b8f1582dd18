"""The ledger as a track: what each GPU's time counts for, instant by instant."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.ledger.accounting import Accounting, Reach, cut_time, work_starts
from gpusight.analysis.ledger.host_threads import ThreadAxis
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.selection import GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.step_window import step_window
from gpusight.results import NotApplicable
from gpusight.viewer.track_style import CODES, COLORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_KEY = f"timeline-ledger-2-{zlib.crc32(' '.join(COLORS).encode()):08x}"
_SCHEMA = {"device": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "color": pl.UInt8}
_CAUSES = np.array([CODES[cause.entry] for cause in IdleCause], np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class LedgerLine:
    """The time of one GPU, from its first activity to its last, without gaps."""

    start_ns: Ints
    end_ns: Ints
    color: NDArray[np.uint8]
    """Entry of each span, as a position in `COLORS`; neighbors differ."""


def ledger_lines(trace: Trace, known: Accounting | None = None) -> Mapping[int, LedgerLine]:
    """Return the line of every GPU that worked; once computed it is cached with the capture.

    `known` is used for its own window instead of computing that again.
    """
    if not any(trace.has(table) for table in GPU_WORK):
        return {}
    frame = trace.derive(_KEY, lambda: _frame(trace, known))
    device = frame["device"].to_numpy()
    lines = {}
    for device_number in frame["device"].unique().sort():
        first, after = (np.searchsorted(device, device_number, side) for side in ("left", "right"))
        part = frame.slice(int(first), int(after - first))
        lines[device_number] = LedgerLine(
            *(part[c].to_numpy() for c in ("start_ns", "end_ns", "color"))
        )
    return lines


def _frame(trace: Trace, known: Accounting | None) -> pl.DataFrame:
    """Account for one stretch after the other, and join the spans of each GPU."""
    parts_by_device: dict[int, list[_Placed]] = {}
    stretches = list(_stretches(trace))
    if not stretches:
        return pl.DataFrame(schema=_SCHEMA)
    for stretch in stretches:
        accounting = Accounting(trace, stretch.from_ns, stretch.to_ns).or_known(known)
        host = _HostPieces.of(
            accounting.hosts,
            ThreadAxis(accounting.start_ns, max(accounting.end_ns - accounting.start_ns, 0)),
        )
        for of_device in accounting.accounts:
            part = _placed(of_device, host).inside(stretch.start_ns, stretch.end_ns)
            parts_by_device.setdefault(of_device.device, []).append(part.merged())
    start_ns, end_ns = stretches[0].start_ns, stretches[-1].end_ns
    parts = [
        pl.DataFrame({"device": device, **_joined(parts, start_ns, end_ns)._asdict()}, _SCHEMA)
        for device, parts in sorted(parts_by_device.items())
    ]
    return pl.concat(parts, rechunk=True)


# Which time is looked at in one go ----------------------------------------------------------------


def _stretches(trace: Trace) -> Iterator[Reach]:
    """Split the capture into before, during and after the analyzed steps, and into windows."""
    window = ResolvedSelection(trace).window
    work = work_starts(trace)
    everything = (window.start_ns, window.end_ns)
    chosen = step_window(trace)
    if isinstance(chosen, NotApplicable):
        yield from cut_time(work, everything, everything)
        return
    inside = (chosen.start_ns, chosen.end_ns)
    yield from cut_time(work, (everything[0], inside[0]), everything)
    yield from cut_time(work, inside, inside)
    yield from cut_time(work, (inside[1], everything[1]), everything)


# What its instants count for ----------------------------------------------------------------------


class _Placed(NamedTuple):
    """Spans of one GPU in order, each with the code of its entry."""

    start_ns: Ints
    end_ns: Ints
    color: NDArray[np.uint8]

    def inside(self, start_ns: int, end_ns: int) -> _Placed:
        """Return what lies in a stretch."""
        start, end = (
            np.clip(self.start_ns, start_ns, end_ns),
            np.clip(self.end_ns, start_ns, end_ns),
        )
        is_inside = end > start
        return _Placed(start[is_inside], end[is_inside], self.color[is_inside])

    def merged(self) -> _Placed:
        """Make one span of neighbors that are alike; no time lies between them."""
        fresh = np.append(True, self.color[1:] != self.color[:-1])[: len(self.color)]
        last = np.append(fresh[1:], True)[: len(self.color)]
        return _Placed(self.start_ns[fresh], self.end_ns[last], self.color[fresh])


class _HostPieces(NamedTuple):
    """What the host did piece by piece, host thread after host thread on one axis."""

    axis: ThreadAxis
    start: Ints
    end: Ints
    cause: Ints

    @classmethod
    def of(cls, hosts: HostTime, axis: ThreadAxis) -> _HostPieces:
        """Lay the pieces out."""
        host_thread, start, end, cause = hosts.pieces
        return cls(axis, axis.at(host_thread, start), axis.at(host_thread, end), cause)

    def during(self, host_threads: Ints, starts: Ints, ends: Ints) -> _Placed:
        """Return what host threads did during spans, which are in order, or that it is unknown."""
        low, high = self.axis.at(host_threads, starts), self.axis.at(host_threads, ends)
        first = np.searchsorted(self.end, low, side="right")
        count = np.maximum(np.searchsorted(self.start, high, side="left") - first, 0)
        span = np.repeat(np.arange(len(starts)), count)
        piece = np.arange(len(span)) + np.repeat(first - np.cumsum(count) + count, count)
        back = (starts - low)[span]
        known = _Placed(
            np.maximum(self.start[piece], low[span]) + back,
            np.minimum(self.end[piece], high[span]) + back,
            _CAUSES[self.cause[piece]],
        )
        dark = np.flatnonzero(count == 0)
        unknown = np.full(len(dark), _CAUSES[IdleCause.UNKNOWN])
        return _together(known, _Placed(starts[dark], ends[dark], unknown))


def _placed(of_device: DeviceAccount, host: _HostPieces) -> _Placed:
    """Return what every span of a GPU counts for: its work, else what delayed the next work."""
    spans, idle = of_device.spans, of_device.spans.idle
    until = of_device.gaps.until(idle)
    busy = np.flatnonzero(spans.gap < 0)
    entries = np.array([CODES[label.entry] for label in of_device.labels.known], np.uint8)
    return _together(
        _Placed(
            spans.start_ns[busy],
            spans.end_ns[busy],
            entries[of_device.labels.of_op[spans.op[busy]]],
        ),
        host.during(of_device.gaps.host_thread[idle.gap], idle.start_ns, until),
        _Placed(until, idle.end_ns, _CAUSES[of_device.gaps.rest[idle.gap]]),
    )


def _together(*parts: _Placed) -> _Placed:
    """Merge spans of several kinds in order; they do not overlap, and some have no length."""
    start, end, color = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.flatnonzero(end > start)
    order = order[np.argsort(start[order], kind="stable")]
    return _Placed(start[order], end[order], color[order])


def _joined(parts: list[_Placed], start_ns: int, end_ns: int) -> _Placed:
    """Join stretches one after the other; time that no stretch covers is unknown.

    A GPU may have no work in a stretch and around it.
    """
    start, end, color = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    dark = np.flatnonzero(np.append(start, end_ns) > np.append(start_ns, end))
    holes = _Placed(
        np.append(start_ns, end)[dark],
        np.append(start, end_ns)[dark],
        np.full(len(dark), _CAUSES[IdleCause.UNKNOWN]),
    )
    spans = _Placed(start, end, color)
    return (_together(spans, holes) if len(dark) else spans).merged()
