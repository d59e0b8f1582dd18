"""The `args` of events: kept as text, decoded when a column asks, and only the keys it needs."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import polars as pl

from gpusight.readers.chrome.cutting import NOT_JSON
from gpusight.readers.names import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NOTHING = msgspec.Raw(b"")


class Builder(Protocol):
    """Gathers the values of one key, some thousand at a time, into a column."""

    raw: bool
    """Wants values as JSON text rather than decoded."""

    def add(self, values: list[Any]) -> None:
        """Take some more values."""
        ...

    def column(self) -> pl.Series:
        """Give the column."""
        ...


class Wanted(NamedTuple):
    """A column to make of arguments."""

    keys: tuple[str, ...]
    """Names of the argument through the ages; an event's first one counts."""
    builder: Callable[[], Builder]


class Numbers:
    """Builds a column of numbers; what is no number is null."""

    raw = False

    def __init__(self, dtype: type[pl.DataType], of: Callable[[Any], Any] | None = None) -> None:
        self._dtype = dtype
        self._of = of
        self._parts: list[pl.Series] = []
        self.wrong = 0
        """Values that are no numbers."""

    def add(self, values: list[Any]) -> None:
        """Take some more values."""
        if self._of is not None:
            values = [self._of(value) for value in values]
        try:
            part = pl.Series(values, dtype=self._dtype, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            part = pl.Series([number(value, self._dtype) for value in values], dtype=self._dtype)
            self.wrong += part.null_count() - sum(value is None for value in values)
        self._parts.append(part)

    def column(self) -> pl.Series:
        """Give the column."""
        return pl.concat(self._parts) if self._parts else pl.Series([], dtype=self._dtype)


class Texts:
    """Builds a dictionary-encoded column of text, or of JSON text as written but for spaces."""

    def __init__(self, *, raw: bool = False, change: Callable[[str], str] = str) -> None:
        self.raw = raw
        self._change = change
        self._codes: list[pl.Series] = []
        self._known: dict[Any, int | None] = {} if not raw else {b"": None, b"null": None}
        self._distinct: list[Any] = []

    def add(self, values: list[Any]) -> None:
        """Take some more values."""
        if self.raw:
            values = [bytes(value) for value in values]
        else:
            values = [v if v is None or type(v) is str else as_text(v) for v in values]
            self._known.setdefault(None, None)
        known = self._known
        for value in dict.fromkeys(values):
            if value not in known:
                known[value] = len(self._distinct)
                self._distinct.append(value)
        self._codes.append(pl.Series([known[value] for value in values], dtype=pl.UInt32))

    def column(self) -> pl.Series:
        """Give the column."""
        texts = [compact(value) for value in self._distinct] if self.raw else self._distinct
        words = pl.Series([self._change(text) for text in texts], dtype=pl.String)
        codes = pl.concat(self._codes) if self._codes else pl.Series([], dtype=pl.UInt32)
        if not texts:
            return pl.Series([None], dtype=pl.Enum([])).new_from_index(0, len(codes))
        return encode(words).gather(codes)


class Arguments:
    """The arguments of the events of one kind, in file order."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self.wrong: dict[str, int] = {}
        """Values that are no numbers, by their key."""

    def add(self, raw: Sequence[msgspec.Raw]) -> None:
        """Take the arguments of some more events."""
        self._blocks.append(b",".join(raw))

    def mention(self, key: str) -> bool:
        """Tell whether any event has this key."""
        quoted = msgspec.json.encode(key)
        return any(quoted in block for block in self._blocks)

    def ends_with_mention(self, quoted: bytes) -> bool:
        """Tell whether the events added last have a key, given in its quotes."""
        return quoted in self._blocks[-1]

    def columns(self, wanted: Sequence[Wanted]) -> list[pl.Series]:
        """Make these columns in one go through the arguments."""
        builders = [w.builder() for w in wanted]
        keys: dict[str, bool] = {}
        for want, builder in zip(wanted, builders, strict=True):
            keys |= dict.fromkeys(want.keys, builder.raw)
        fields = {key: f"f{place}" for place, key in enumerate(keys)}
        for structs in self._decoded(keys):
            for want, builder in zip(wanted, builders, strict=True):
                builder.add(_first(structs, [fields[key] for key in want.keys], raw=builder.raw))
        for want, builder in zip(wanted, builders, strict=True):
            if isinstance(builder, Numbers) and builder.wrong:
                self.wrong[want.keys[0]] = builder.wrong
        return [builder.column() for builder in builders]

    def _decoded(self, keys: dict[str, bool]) -> Iterator[list[Any]]:
        """Give structs with a field for each key, a block at a time."""
        struct = msgspec.defstruct(
            "Args",
            [
                (f"f{n}", msgspec.Raw if raw else Any, _NOTHING if raw else None)
                for n, raw in enumerate(keys.values())
            ],
            rename={f"f{n}": key for n, key in enumerate(keys)},
            gc=False,
        )
        decoder: Any = msgspec.json.Decoder(list[struct])  # type: ignore[valid-type]
        for block in self._blocks:
            text = b"[%b]" % block
            try:
                yield decoder.decode(text)
            except NOT_JSON:
                yield decoder.decode(b"[%b]" % b",".join(_objects(text, decoder)))


def _objects(text: bytes, decoder: Any) -> Iterator[bytes]:
    """Give arguments that can be decoded as they are, others as empty ones.

    Text that is not UTF-8 was passed over by the first decoding, as was what nests too deep.
    """
    text = text.decode("utf-8", "replace").encode()
    for raw in msgspec.json.decode(text, type=list[msgspec.Raw]):
        one = bytes(raw)
        try:
            decoder.decode(b"[%b]" % one)
        except NOT_JSON:
            one = b"{}"
        yield one


def _first(structs: list[Any], fields: list[str], *, raw: bool) -> list[Any]:
    """Take from each struct the first of the fields that is there."""
    values = list(map(attrgetter(fields[0]), structs))
    for field in fields[1:]:
        get = attrgetter(field)
        if raw:
            values = [v if len(bytes(v)) else get(s) for v, s in zip(values, structs, strict=True)]
        else:
            values = [get(s) if v is None else v for v, s in zip(values, structs, strict=True)]
    return values


def number(value: object, dtype: type[pl.DataType]) -> int | float | None:
    """Read a number in whichever way it was written; null where it is none."""
    try:
        real = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if dtype is not pl.Int64:
        return real
    whole = value if isinstance(value, int) else _whole(value, real)
    return whole if whole is not None and abs(whole) < 1 << 63 else None


def _whole(value: object, real: float) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value) if len(value) < 24 else None
    return int(real) if abs(real) < 1 << 63 else None


def as_text(value: object) -> str:
    """Write a value that was expected to be text as JSON."""
    return msgspec.json.encode(value).decode()


def compact(raw: bytes) -> str:
    """Write JSON text without spaces, however it was spaced."""
    try:
        return msgspec.json.format(raw, indent=-1).decode("utf-8", "replace")
    except NOT_JSON:
        return raw.decode("utf-8", "replace")
