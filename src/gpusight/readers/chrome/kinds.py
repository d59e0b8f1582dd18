"""Which kind each event of a PyTorch trace is, by its phase and category, 2019 to 2026."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from gpusight.readers.chrome.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPERATOR, ANNOTATION, PYTHON, MEMORY = "operator", "annotation", "python", "memory"
KERNEL, COPY, FILL, SYNC, GPU_ANNOTATION = "kernel", "copy", "fill", "sync", "gpu annotation"
RUNTIME, DRIVER, OVERHEAD, COLLECTIVE = "runtime", "driver", "overhead", "collective"
PLAIN, SETTING, SILENT = "plain", "setting", "silent"

HOST_KINDS = (OPERATOR, RUNTIME, DRIVER, ANNOTATION, PYTHON)
GPU_WORK_KINDS = (KERNEL, COPY, FILL)

_CATEGORIES = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "gpu_user_annotation": GPU_ANNOTATION,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": FILL,
    "memset": FILL,
    "cuda_runtime": RUNTIME,
    "runtime": RUNTIME,
    "cuda_driver": DRIVER,
    "driver": DRIVER,
    "cuda_sync": SYNC,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
    "trace": SILENT,
}
_INSTANT, _OLD_OPERATOR = "instant", "old operator"
_MEMORY = "[memory]"
_COLLECTIVE = b'"Collective name"'
# The profiler before 2021 had no categories: it named its tracks instead.
_OLD_TRACKS = {"CPU functions": OPERATOR, "CUDA functions": KERNEL}


class Sorter:
    """Sorts events into rows by kind, and counts those that no table is made of."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {}
        self.settings: list[Any] = []
        """Events that name processes and threads."""
        self.unknown: Counter[str] = Counter()
        """Categories and phases that no table is made of."""

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Take some more events."""
        alike: dict[tuple[str, str | None], list[Any]] = defaultdict(list)
        for event in events:
            alike[event.ph, event.cat].append(event)
        for (phase, category), members in alike.items():
            kind = _kind_of(phase, category)
            if kind not in _DECIDED_BY_EVENT:
                self._put(kind, members, exact=exact)
                continue
            apart: dict[str, list[Any]] = defaultdict(list)
            for event in members:
                apart[_DECIDED_BY_EVENT[kind](event)].append(event)
            for decided, some in apart.items():
                self._put(decided, some, exact=exact)

    def _put(self, kind: str | None, events: list[Any], *, exact: bool) -> None:
        if kind is None:
            self.unknown.update(event.cat or f"phase {event.ph!r}" for event in events)
        elif kind == SETTING:
            self.settings += events
        elif kind != SILENT:
            self._rows(kind).add(events, exact=exact, instant=kind == MEMORY)
            if kind in (OPERATOR, KERNEL):
                self._put_collectives(kind, events, exact=exact)

    def _put_collectives(self, kind: str, events: list[Any], *, exact: bool) -> None:
        """Take communications a second time, with what only they say of themselves."""
        rows = self._rows(kind)
        if rows.arguments.ends_with_mention(_COLLECTIVE):
            named = [event for event in events if _COLLECTIVE in bytes(event.args)]
            self._rows(f"{kind} {COLLECTIVE}").add(named, exact=exact)

    def left_out(self) -> Iterator[tuple[str, int, Counter[str]]]:
        """Give kinds with events that cannot be used: how many there are, and why how many."""
        for kind, rows in self.rows.items():
            if rows.left_out and not kind.endswith(COLLECTIVE):  # those were taken twice
                yield kind, rows.height + rows.left_out.total(), rows.left_out

    def _rows(self, kind: str) -> Rows:
        return self.rows.setdefault(kind, Rows())

    def of(self, kind: str) -> Rows:
        """Give the rows of a kind, none where there are none."""
        return self.rows.get(kind) or Rows()


def _kind_of(phase: str, category: str | None) -> str | None:
    if phase == "M":
        return SETTING
    if phase in ("i", "I"):
        return _INSTANT
    # Flows repeat correlation and sequence numbers; JAX ends its list with an empty object.
    if phase in ("s", "t", "f", ""):
        return SILENT
    if phase != "X":
        return None
    if category is None:
        return PLAIN
    return _OLD_OPERATOR if category == "Operator" else _complete_kind(category.lower())


def _complete_kind(category: str) -> str | None:
    """Place a category; those that only later or other builds of PyTorch write by their ending."""
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    for ending, kind in (("_runtime", RUNTIME), ("_driver", DRIVER), ("kernel", KERNEL)):
        if category.endswith(ending):
            return kind
    return None


def _instant(event: Any) -> str:
    return MEMORY if event.name == _MEMORY else SILENT


def _operator_or_annotation(event: Any) -> str:
    """Tell apart what older traces put into one category: annotations carry a `#` in their name."""
    name = event.name or ""
    return ANNOTATION if "#" in name and "::" not in name else OPERATOR


def _plain(event: Any) -> str:
    return _OLD_TRACKS.get(event.pid, PLAIN) if isinstance(event.pid, str) else PLAIN


_DECIDED_BY_EVENT = {_INSTANT: _instant, _OLD_OPERATOR: _operator_or_annotation, PLAIN: _plain}
