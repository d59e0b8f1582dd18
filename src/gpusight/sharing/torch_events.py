"""Events of a PyTorch trace as they stand in a copy: in their order, with the keys that we know.

Events that have the same keys are written together: a template holds what they share, and each key
is a column of values, so that numbers, nearly all of a trace, are checked many at a time.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpusight.readers.chrome import kinds
from gpusight.readers.chrome.cutting import NOT_JSON
from gpusight.readers.chrome.events import Event
from gpusight.sharing.profiler_words import is_said
from gpusight.sharing.report import Category, Fate
from gpusight.sharing.torch_names import NAMINGS
from gpusight.sharing.torch_rules import ARGUMENTS, CATEGORIES, EVENT, REMOVED_ARGUMENTS, Rule
from gpusight.sharing.torch_values import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from gpusight.sharing.tally import Tally
    from gpusight.sharing.torch_values import Column, Values

    Raw: TypeAlias = "dict[str, msgspec.Raw]"

_ARGUMENTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_CANONICAL = {
    kinds.RUNTIME: "cuda_runtime",
    kinds.DRIVER: "cuda_driver",
    kinds.KERNEL: "kernel",
}
_LABELS = {
    "process_name": ("name", Category.PROCESSES),
    "process_labels": ("labels", Category.PROCESSES),
    "thread_name": ("name", Category.THREAD_NAMES),
}
"""Events that name processes and threads, and the argument that does."""
_ORDERS = frozenset({"process_sort_index", "thread_sort_index"})
_OTHER_ARGUMENTS = "args: other keys"


class Look(NamedTuple):
    """What tells the kind of an event."""

    phase: str
    category: str | None
    name: str = ""
    track: str | None = None


@lru_cache(maxsize=1 << 14)
def kind_of(look: Look) -> str | None:
    """Sort an event as the reader does; None where it makes no table of such."""
    event = Event(ph=look.phase, cat=look.category, name=look.name, pid=look.track, ts=0.0)
    sorter = kinds.Sorter()
    sorter.add([event], exact=False)
    if sorter.settings:
        return kinds.SETTING
    return None if sorter.unknown else next(iter(sorter.rows), kinds.SILENT)


class Events:
    """Writes events some thousand at a time."""

    def __init__(self, values: Values, tally: Tally) -> None:
        self._values = values
        self._tally = tally
        self.kinds: set[str] = set()
        """Kinds of events that were there."""

    def cleaned(self, events: Sequence[Raw]) -> list[bytes]:
        """Write events in the order they have; those that are left behind are missing."""
        written: list[bytes | None] = [None] * len(events)
        for (look, keys), places in _alike(events).items():
            kind = kind_of(look)
            if kind is not None:
                self.kinds.add(kind)
            if not _is_known(kind, look):
                self._leave(look, len(places))
                continue
            group = _Group(self._values, self._tally, str(kind), look, keys)
            for place, text in group.written(events, places):
                written[place] = text
        return [text for text in written if text is not None]

    def _leave(self, look: Look, count: int) -> None:
        if look.phase:
            key = (look.phase, look.category, look.name, count)
            self._tally.add(Category.UNKNOWN, "kinds of events", Fate.REMOVED, key)


def _alike(events: Sequence[Raw]) -> dict[tuple[Look, tuple[str, ...]], list[int]]:
    """Put events together that have the same kind and the same keys."""
    looks: dict[tuple[bytes, ...], Look] = {}
    groups: dict[tuple[Look, tuple[str, ...]], list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        raw: tuple[bytes, ...] = (bytes(event.get("ph", b"")), bytes(event.get("cat", b"")))
        look = looks.get(raw) or looks.setdefault(raw, _look(*raw))
        if not _is_told(look):
            raw += (bytes(event.get("name", b"")), bytes(event.get("pid", b"")))
            look = looks.get(raw) or looks.setdefault(raw, _look(*raw))
        groups[look, tuple(event)].append(place)
    return groups


@lru_cache(maxsize=1 << 10)
def _is_told(look: Look) -> bool:
    """Tell whether phase and category are enough to know the kind: in today's traces they are."""
    category = look.category
    flow = look.phase in ("s", "t", "f")
    return category is not None and (flow or look.phase == "X") and category != "Operator"


def _look(phase: bytes, category: bytes, name: bytes = b"", track: bytes = b"") -> Look:
    return Look(text_of(phase) or "", text_of(category), text_of(name) or "", text_of(track))


def _is_known(kind: str | None, look: Look) -> bool:
    """Tell whether events of a kind are copied."""
    if kind == kinds.SETTING:
        return look.name in _LABELS or look.name in _ORDERS
    if kind == kinds.SILENT:
        flows = look.phase in ("s", "t", "f") and (look.category or "").lower() in CATEGORIES
        return flows or (look.phase in ("i", "I", "X") and is_said(look.name))
    return kind is not None and kind != kinds.PLAIN


class _Group:
    """Events of one kind with the same keys."""

    def __init__(
        self, values: Values, tally: Tally, kind: str, look: Look, keys: tuple[str, ...]
    ) -> None:
        self._values = values
        self._tally = tally
        self._kind = kind
        self._look = look
        self._keys = keys

    def written(self, events: Sequence[Raw], places: Sequence[int]) -> Iterable[tuple[int, bytes]]:
        """Write the events at these places."""
        if "args" not in self._keys:
            yield from self._rows([events[place] for place in places], [{}] * len(places), places)
            return
        arguments = self._arguments([events[place]["args"] for place in places])
        apart: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for at, own in enumerate(arguments):
            apart[tuple(own)].append(at)
        for members in apart.values():
            yield from self._rows(
                [events[places[at]] for at in members],
                [arguments[at] for at in members],
                [places[at] for at in members],
            )

    def _arguments(self, raw: list[msgspec.Raw]) -> list[Raw]:
        try:
            return _ARGUMENTS.decode(b"[%b]" % b",".join(raw))
        except NOT_JSON:
            return [self._decoded(one) for one in raw]

    def _decoded(self, raw: msgspec.Raw) -> Raw:
        text = bytes(raw).decode("utf-8", "replace").encode()
        try:
            return _ARGUMENTS.decode(b"[%b]" % text)[0]
        except NOT_JSON:
            self._tally.add(Category.UNKNOWN, "args that are no object", Fate.REMOVED, text)
            return {}

    def _rows(
        self, events: list[Raw], arguments: list[Raw], places: Sequence[int]
    ) -> Iterable[tuple[int, bytes]]:
        template: list[bytes] = []
        columns: list[Column] = []
        for key in self._keys:
            if key == "args":
                template.append(self._written_arguments(arguments, columns))
            else:
                template += self._written_key(key, events, columns)
        text = b"{" + b",".join(template) + b"}"
        rows = zip(*columns, strict=True) if columns else [()] * len(places)
        for place, row in zip(places, rows, strict=True):
            if None not in row:
                yield place, text % row

    def _written_key(self, key: str, events: list[Raw], columns: list[Column]) -> list[bytes]:
        if key == "ph":
            return [_literal(key, self._look.phase)]
        if key == "cat":
            return [_literal(key, self._category())]
        if key != "name" and key not in EVENT:
            self._tally.add(Category.UNKNOWN, "other keys of events", Fate.REMOVED, key)
            return []
        raw = [event[key] for event in events]
        if key == "name" and self._kind == kinds.SETTING:
            return [_literal(key, self._look.name)]
        if key == "name":
            columns.append(self._values.names(NAMINGS.get(self._kind), f"{self._kind}: {key}", raw))
        else:
            columns.append(self._values.column(EVENT[key], key, raw))
        return [_slot(key)]

    def _category(self) -> str | None:
        category = self._look.category
        if category is None or category.lower() in CATEGORIES:
            return category
        return _CANONICAL.get(self._kind, self._kind)

    def _written_arguments(self, arguments: list[Raw], columns: list[Column]) -> bytes:
        slots = []
        for key in arguments[0]:
            column = self._argument(key, [own[key] for own in arguments])
            if column is not None:
                columns.append(column)
                slots.append(_slot(key))
        return b'"args":{' + b",".join(slots) + b"}"

    def _argument(self, key: str, raw: list[msgspec.Raw]) -> Column | None:
        if self._kind == kinds.SETTING:
            return self._setting(key, raw)
        rule = ARGUMENTS.get(key)
        if rule is not None:
            return self._values.column(rule, f"args: {key}", raw)
        category = REMOVED_ARGUMENTS.get(key)
        if category is None:
            self._tally.add(Category.UNKNOWN, _OTHER_ARGUMENTS, Fate.REMOVED, key)
        else:
            texts = map(bytes, raw)
            self._tally.add_all(category, f"args: {key}", Fate.REMOVED, texts)
        return None

    def _setting(self, key: str, raw: list[msgspec.Raw]) -> Column | None:
        if key == "sort_index":
            return self._values.column(Rule.NUMBERS, f"args: {key}", raw)
        wanted, category = _LABELS.get(self._look.name, ("", Category.UNKNOWN))
        if key == wanted:
            return self._values.labels(category, self._look.name, raw)
        self._tally.add(Category.UNKNOWN, _OTHER_ARGUMENTS, Fate.REMOVED, key)
        return None


def _literal(key: str, value: str | None) -> bytes:
    return _escaped(key) + b":" + msgspec.json.encode(value).replace(b"%", b"%%")


def _slot(key: str) -> bytes:
    return _escaped(key) + b":%b"


def _escaped(key: str) -> bytes:
    return msgspec.json.encode(key).replace(b"%", b"%%")
