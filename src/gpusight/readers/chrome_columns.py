"""Chrome trace events of one kind as columns: times, names and threads now, arguments on demand."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from functools import cached_property
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from gpusight.core.file_decoders import (
    ELEMENT,
    HAS_VALUE,
    JSON_TEXT,
    NO_ARGUMENT,
    REAL_NUMBER,
    TEXT,
    WHOLE_NUMBER,
    WantedArgument,
)
from gpusight.readers.chrome_scan import (
    NOT_JSON,
    TIME_LIMIT_NS,
    ArgumentPart,
    RowPart,
    in_turn,
    nanoseconds,
    text_of,
)
from gpusight.readers.tables import MAX_DURATION_NS, NAMELESS, encode_names, is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.readers.chrome_scan import ScannedRows


_NOTHING = msgspec.Raw(b"")


class ArgumentColumn(NamedTuple):
    """A column to make of arguments."""

    keys: tuple[str, ...]
    """Names of the argument in all versions; the first one that an event has counts."""
    builder: Callable[[], NumberBuilder | TextBuilder]


class NumberBuilder:
    """Builds a column of numbers; other values become null."""

    raw = False
    """Takes values decoded rather than as JSON text."""

    def __init__(self, dtype: type[pl.DataType], *, place: int | None = None) -> None:
        self._dtype = dtype
        self._place = place
        """Which element of a list it is."""
        self._parts: list[pl.Series | tuple[NDArray[Any], NDArray[np.bool_]]] = []
        self.wrong = 0
        """Values that are no numbers."""

    def add(self, values: list[Any]) -> None:
        """Add more values."""
        place = self._place
        if place is not None:
            values = [v[place] if isinstance(v, list) and len(v) > place else None for v in values]
        try:
            part = pl.Series(values, dtype=self._dtype, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            part = pl.Series(
                [json_number(value, self._dtype) for value in values], dtype=self._dtype
            )
            self.wrong += part.null_count() - sum(value is None for value in values)
        self._parts.append(part)

    def wanted(self, key: str) -> WantedArgument:
        """Describe the column to the core."""
        if self._place is not None:
            return WantedArgument(key, ELEMENT, self._place)
        return WantedArgument(key, WHOLE_NUMBER if self._dtype is pl.Int64 else REAL_NUMBER)

    def add_decoded(self, values: NDArray[np.int64], states: NDArray[np.uint8], _: object) -> None:
        """Add values that the core has decoded."""
        numbers = values if self._dtype is pl.Int64 else values.view(np.float64)
        self._parts.append((numbers, states == HAS_VALUE))

    def column(self) -> pl.Series:
        """Return the column."""
        decoded = [part for part in self._parts if isinstance(part, tuple)]
        if decoded and len(decoded) == len(self._parts):
            return _masked(*(np.concatenate(column) for column in zip(*decoded, strict=True)))
        parts = [_masked(*part) if isinstance(part, tuple) else part for part in self._parts]
        return _joined(parts, self._dtype)


def _masked(values: NDArray[Any], are_there: NDArray[np.bool_]) -> pl.Series:
    """Make a column that is null where nothing is there."""
    column = pl.Series(values)
    if are_there.all():
        return column
    frame = pl.DataFrame({"value": column, "there": are_there})
    return frame.select(pl.when("there").then("value")).to_series().alias("")


class TextBuilder:
    """Builds a dictionary-encoded column of text, or of JSON text as written but for spaces."""

    def __init__(self, *, raw: bool = False, change: Callable[[str], str] = str) -> None:
        self.raw = raw
        self._change = change
        self._codes: list[NDArray[np.uint32]] = []
        self._known: dict[Any, int] = dict.fromkeys((b"", b"null") if raw else (None,), _NO_CODE)
        self._distinct: list[Any] = []
        self.wrong = 0
        """Any value is a text."""

    def add(self, values: list[Any]) -> None:
        """Add more values."""
        if self.raw:
            values = [bytes(value) for value in values]
        else:
            values = [
                v if v is None or type(v) is str else msgspec.json.encode(v).decode()
                for v in values
            ]
        known = self._known
        self._number(dict.fromkeys(values))
        self._codes.append(np.array([known[value] for value in values], np.uint32))

    def wanted(self, key: str) -> WantedArgument:
        """Describe the column to the core."""
        return WantedArgument(key, JSON_TEXT if self.raw else TEXT)

    def add_decoded(
        self, values: NDArray[np.int64], states: NDArray[np.uint8], texts: Sequence[Any]
    ) -> None:
        """Add values that the core has decoded, as numbers of texts."""
        numbers = np.where(states == HAS_VALUE, values, len(texts))
        first = np.full(len(texts) + 1, -1)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        first[-1] = -1
        used = np.flatnonzero(first >= 0)
        used = used[np.argsort(first[used])].tolist()
        self._number(texts[number] for number in used)
        codes = np.full(len(first), _NO_CODE, np.uint32)
        codes[used] = [self._known[texts[number]] for number in used]
        self._codes.append(codes[numbers])

    def _number(self, values: Iterable[Any]) -> None:
        """Number values that are new."""
        known = self._known
        for value in values:
            if value not in known:
                known[value] = len(self._distinct)
                self._distinct.append(value)

    def column(self) -> pl.Series:
        """Return the column."""
        texts = [compact(value) for value in self._distinct] if self.raw else self._distinct
        words = pl.Series([self._change(text) for text in texts], dtype=pl.String)
        numbers = np.concatenate(self._codes) if self._codes else np.zeros(0, np.uint32)
        if not texts:
            return pl.Series([None], dtype=pl.Enum([])).new_from_index(0, len(numbers))
        return encode_names(words).gather(_masked(numbers, numbers != _NO_CODE))


_NO_CODE = (1 << 32) - 1


class EventArguments:
    """The arguments of the events of one kind, in file order."""

    def __init__(self) -> None:
        self._parts: list[ArgumentPart] = []
        self.wrong: dict[str, int] = {}
        """Values that are no numbers, by their key."""
        self._kept: dict[ArgumentColumn, tuple[pl.Series, int]] = {}
        """Columns of whole numbers that will be wanted again, and their `wrong`."""

    def add(self, raw: Sequence[msgspec.Raw]) -> None:
        """Add the arguments of more events."""
        text = b",".join(raw)
        self._parts.append(ArgumentPart(text, len(text)))

    def add_part(self, part: ArgumentPart) -> None:
        """Add the arguments of more events, which the core has found."""
        self._parts.append(part)

    def mention(self, key: str) -> bool:
        """Return whether any event has this key."""
        quoted = msgspec.json.encode(key)
        return any(part.mention(quoted) for part in self._parts)

    def ends_with_mention(self, quoted: bytes) -> bool:
        """Return whether the events added last have a key, which is quoted."""
        return self._parts[-1].mention(quoted)

    def joined(self) -> bytes:
        """Return all of them, with a comma between two."""
        there = (part for part in self._parts if part.size or part.at is not None)
        return b",".join(part.joined() for part in there)

    def columns(
        self, wanted: Sequence[ArgumentColumn], likely: Sequence[ArgumentColumn] = ()
    ) -> list[pl.Series]:
        """Build these columns in one pass over the arguments.

        Where there is one to be made, columns of whole numbers that are likely to be wanted later
        are built in the same pass, and kept.
        """
        missing = [column for column in dict.fromkeys(wanted) if column not in self._kept]
        built: dict[ArgumentColumn, tuple[pl.Series, int]] = {}
        if missing:
            others = [c for c in likely if c not in missing and c not in self._kept]
            missing += [c for c in others if any(self.mention(key) for key in c.keys)]
            built = dict(zip(missing, self._built(missing), strict=True))
            for column in likely:
                if column in built:
                    series, wrong = built[column]
                    self._kept[column] = series.shrink_dtype(), wrong
        columns = []
        for column in wanted:
            series, wrong = built[column] if column in built else self._kept[column]
            if wrong:
                self.wrong[column.keys[0]] = wrong
            columns.append(series if column in built else series.cast(pl.Int64))
        return columns

    def _built(self, wanted: Sequence[ArgumentColumn]) -> list[tuple[pl.Series, int]]:
        """Build columns, each with the count of values that are no numbers."""
        builders = [column.builder() for column in wanted]
        keys: dict[str, bool] = {}
        for column, builder in zip(wanted, builders, strict=True):
            keys |= dict.fromkeys(column.keys, builder.raw)
        fields = {key: f"f{index}" for index, key in enumerate(keys)}
        specs = [
            [builder.wanted(key) for key in column.keys]
            for column, builder in zip(wanted, builders, strict=True)
        ]
        decodings = in_turn(lambda part: _decode(part, specs), self._parts)
        for part, decoded in zip(self._parts, decodings, strict=True):
            if decoded is not None:
                for builder, values in zip(builders, decoded, strict=True):
                    builder.add_decoded(*values)
                continue
            for structs in _structs(part, keys):
                for column, builder in zip(wanted, builders, strict=True):
                    names = [fields[key] for key in column.keys]
                    builder.add(_first(structs, names, raw=builder.raw))
        return [(builder.column(), builder.wrong) for builder in builders]


def _decode(
    part: ArgumentPart, specs: list[list[WantedArgument]]
) -> list[tuple[NDArray[np.int64], NDArray[np.uint8], list[Any]]] | None:
    """Decode columns by the core, each of the first of its keys that an event has.

    Returns values, states and texts of each; None where the core cannot.
    """
    if part.at is None or part.keys is None:
        return None
    there = [[spec for spec in keys if spec.key.encode() in part.keys] for keys in specs]
    wanted = list(dict.fromkeys(spec for keys in there for spec in keys))
    decoded = part.columns(wanted) if wanted else None
    if wanted and decoded is None:
        return None
    none = np.zeros(len(part.at), np.int64), np.zeros(len(part.at), np.uint8)
    texts = [] if decoded is None else [_text_or_none(raw) for raw in decoded.texts]
    no_texts = [number for number, text in enumerate(texts) if text is None]
    columns = []
    for keys in there:
        values, states = none
        is_raw = bool(keys) and keys[0].type == JSON_TEXT
        for place, spec in enumerate(keys):
            assert decoded is not None
            row = wanted.index(spec)
            if place == 0:
                values, states = decoded.values[row], decoded.states[row]
                continue
            # Of JSON text a null counts, as all that is written does.
            open_ones = states == NO_ARGUMENT if is_raw else states != HAS_VALUE
            values = np.where(open_ones, decoded.values[row], values)
            states = np.where(open_ones, decoded.states[row], states)
        is_text = bool(keys) and keys[0].type == TEXT
        if is_text and no_texts and np.isin(values[states == HAS_VALUE], no_texts).any():
            return None
        columns.append((values, states, decoded.texts if is_raw and decoded else texts))
    return columns


def _text_or_none(raw: bytes) -> str | None:
    """Decode a text of JSON; None of what is none, such as a list."""
    try:
        return text_of(raw)
    except NOT_JSON:
        return None


def _structs(part: ArgumentPart, keys: dict[str, bool]) -> Iterator[list[Any]]:
    """Yield structs with a field for each key."""
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
    text = b"[" + part.joined() + b"]"
    try:
        yield decoder.decode(text)
    except NOT_JSON:  # the first decoding skipped text that is not UTF-8, or nests too deep
        text = text.decode("utf-8", "replace").encode()
        structs = []
        for raw in msgspec.json.decode(text, type=list[msgspec.Raw]):
            arguments = b"[%b]" % bytes(raw)
            try:
                structs += decoder.decode(arguments)
            except NOT_JSON:
                structs.append(struct())
        yield structs


def _first(structs: list[Any], fields: list[str], *, raw: bool) -> list[Any]:
    """Return for each struct the first of these fields that it has."""
    values = list(map(attrgetter(fields[0]), structs))
    for field in fields[1:]:
        get = attrgetter(field)
        if raw:
            values = [v if len(bytes(v)) else get(s) for v, s in zip(values, structs, strict=True)]
        else:
            values = [get(s) if v is None else v for v, s in zip(values, structs, strict=True)]
    return values


def json_number(value: object, dtype: type[pl.DataType]) -> int | float | None:
    """Read a number, written as a number or as text; None if it is none."""
    try:
        real = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if dtype is not pl.Int64:
        return real
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        value = int(value) if len(value) < 24 else 1 << 63
    elif not isinstance(value, int):
        value = int(real) if abs(real) < 1 << 63 else 1 << 63
    return value if abs(value) < 1 << 63 else None


def compact(raw: bytes) -> str:
    """Write JSON text without spaces, however it was spaced."""
    try:
        return msgspec.json.format(raw, indent=-1).decode("utf-8", "replace")
    except NOT_JSON:
        return raw.decode("utf-8", "replace")


THREAD_SHIFT = 1 << 32
_LAST_NUMBER = re.compile(r"-?\d{1,18}")
_LIMIT_US = TIME_LIMIT_NS / 1000


class EventRows:
    """The events of one kind, in file order."""

    def __init__(self) -> None:
        self._names: defaultdict[str, int] = defaultdict(count().__next__)
        """Numbers names in order of first appearance."""
        self._parts: list[RowPart] = []
        self.arguments = EventArguments()
        self.height = 0
        self.left_out: Counter[str] = Counter()
        """Why events were left out, and how many."""
        self.tracks: set[tuple[int, int]] = set()
        """The numbers of process and thread that occur."""
        self.first_ns, self.last_ns = 1 << 62, -1 << 62
        """When the first began and the last ended; of no events, no times."""

    def add(self, events: Sequence[Any], *, exact: bool, instant: bool = False) -> None:
        """Add more events; an instant has no duration."""
        times = exact_ns if exact else microseconds
        starts = times([e.ts for e in events])
        durations = starts.clip(0, 0) if instant else times([e.dur for e in events])
        longest = MAX_DURATION_NS if durations.dtype == pl.Int64 else MAX_DURATION_NS // 1000
        within = durations.is_empty() or is_inside(durations, 0, longest)
        if not within or starts.null_count() or durations.null_count():
            problems = _problems(starts, durations, longest)
            self.left_out.update(problems.drop_nulls())
            usable = problems.is_null()
            events = [event for event, keep in zip(events, usable, strict=True) if keep]
            starts, durations = starts.filter(usable), durations.filter(usable)
        if len(events):
            names = self._names
            codes = np.array([names[e.name or NAMELESS] for e in events], np.uint32)
            times_ns = (nanoseconds(values.to_numpy()) for values in (starts, durations))
            labels = (
                numbers(values).fill_null(0).to_numpy()
                for values in ([e.pid for e in events], [e.tid for e in events])
            )
            self._add_part(RowPart.of(codes, *times_ns, *labels))
        self.arguments.add([e.args for e in events])

    def add_scanned(self, scanned: ScannedRows) -> None:
        """Add events that the core has decoded."""
        names = self._names
        numbers = np.array([names[name or NAMELESS] for name in scanned.names], np.uint32)
        self._add_part(scanned.part._replace(codes=numbers[scanned.part.codes]))
        self.arguments.add_part(scanned.arguments)

    def _add_part(self, part: RowPart) -> None:
        self._parts.append(part)
        self.height += len(part.starts)
        self.tracks |= part.tracks
        self.first_ns = min(self.first_ns, part.first_ns)
        self.last_ns = max(self.last_ns, part.last_ns)

    def _column(self, name: str, dtype: type[Any]) -> pl.Series:
        parts = [getattr(part, name) for part in self._parts]
        return pl.Series(np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype))

    @cached_property
    def start_ns(self) -> pl.Series:
        """When each began, on the file's own clock."""
        return self._column("starts", np.int64).alias("start_ns")

    @cached_property
    def duration_ns(self) -> pl.Series:
        """How long each took."""
        return self._column("durations", np.int64)

    @cached_property
    def pid(self) -> pl.Series:
        """The track's process as a number."""
        return self._column("processes", np.int64)

    @cached_property
    def tid(self) -> pl.Series:
        """The track's thread as a number."""
        return self._column("threads", np.int64)

    @property
    def thread(self) -> pl.Series:
        """The key of the thread: its process and its number in one."""
        return thread_key(self.pid, self.tid)

    @property
    def distinct_names(self) -> list[str]:
        """The names that occur, in order of first appearance."""
        return list(self._names)

    @cached_property
    def codes(self) -> pl.Series:
        """Each row's position in `distinct_names`."""
        return self._column("codes", np.uint32)

    @property
    def names(self) -> pl.Series:
        """The names, dictionary-encoded."""
        return self.named(self.distinct_names)

    def named(self, texts: list[Any]) -> pl.Series:
        """Map one text per distinct name to the rows, dictionary-encoded."""
        return encode_names(pl.Series(texts, dtype=pl.String)).gather(self.codes)


def thread_key(pid: pl.Series, tid: pl.Series) -> pl.Series:
    """Combine the numbers of process and thread into one key."""
    low = tid.to_frame("t").select(pl.col("t") & (THREAD_SHIFT - 1)).to_series()
    return pid.clip(-(1 << 30), 1 << 30) * THREAD_SHIFT + low


def microseconds(times: list[Any]) -> pl.Series:
    """Return times in microseconds; null where no clock could show them."""
    try:
        values = pl.Series(times, dtype=pl.Float64)
    except (TypeError, pl.exceptions.PolarsError):  # a text among them, which may be a number
        values = pl.Series([json_number(time, pl.Float64) for time in times], dtype=pl.Float64)
    if is_inside(values, -_LIMIT_US, _LIMIT_US):
        return values
    usable = values.is_finite() & (values.abs() < _LIMIT_US)
    return values.to_frame("v").select(pl.when(usable).then(pl.col("v"))).to_series()


def _problems(starts: pl.Series, durations: pl.Series, longest: int) -> pl.Series:
    """Return for each event why it cannot be used; null where it can be."""
    duration = pl.col("duration")
    return pl.select(start=starts, duration=durations).select(
        pl.when(pl.col("start").is_null())
        .then(pl.lit("no time"))
        .when(duration.is_null())
        .then(pl.lit("no duration"))
        .when(duration < 0)
        .then(pl.lit("a negative duration"))
        .when(duration > longest)
        .then(pl.lit("a duration over 30 days"))
        .alias("why")
    )["why"]


def exact_ns(times: list[Any]) -> pl.Series:
    """Turn microseconds written as text into nanoseconds, digit by digit."""
    texts = pl.Series([bytes(t).decode("ascii", "replace").strip('"') for t in times])
    parts = pl.DataFrame({"text": texts}).select(
        pl.col("text").str.extract(r"^(-?\d{1,16})(?:\.\d*)?$").cast(pl.Int64).alias("whole"),
        pl.col("text").str.extract(r"\.(\d+)$").str.pad_end(3, "0").str.slice(0, 4).alias("part"),
        pl.col("text").str.starts_with("-").alias("negative"),
    )
    digits = parts["part"].str.pad_end(4, "0").cast(pl.Int64).fill_null(0)
    below = ((digits + 5) // 10).zip_with(~parts["negative"], -((digits + 5) // 10))
    exact = parts["whole"] * 1000 + below
    exact = exact.set(parts["whole"].abs() > TIME_LIMIT_NS // 1000, None)
    if exact.null_count() == 0:
        return exact
    doubles = microseconds(texts.cast(pl.Float64, strict=False).to_list())
    others = pl.Series(nanoseconds(doubles.fill_null(0).to_numpy())).set(doubles.is_null(), None)
    return exact.zip_with(exact.is_not_null(), others)


def numbers(values: list[Any]) -> pl.Series:
    """Turn process and thread labels into numbers: `7`, `"7"` and `"stream 7"` are 7."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        known: dict[Any, int | None] = {value: number_of(value) for value in set(values)}
        return pl.Series([known[value] for value in values], dtype=pl.Int64)


def number_of(label: object) -> int | None:
    """Return the number that a label ends in, else a negative one hashed from its text."""
    if label is None or isinstance(label, bool):
        return None
    if isinstance(label, (int, float)):
        return int(label) if abs(label) < 1 << 63 else None
    digits = _LAST_NUMBER.findall(str(label))
    return int(digits[-1]) if digits else -1 - zlib.crc32(str(label).encode("utf-8", "replace"))


def _joined(parts: list[pl.Series], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    return pl.concat(parts) if parts else pl.Series([], dtype=dtype)


def process_labels(settings: Iterable[Any]) -> dict[int | None, str]:
    """Return the name of each process, by its number; the last event counts."""
    return {number_of(event.pid): name for event, name in _named(settings, "process_name")}


def thread_labels(settings: Iterable[Any]) -> dict[tuple[int | None, int | None], str]:
    """Return the name of each thread, by the numbers of its process and its own."""
    return {
        (number_of(event.pid), number_of(event.tid)): name
        for event, name in _named(settings, "thread_name")
    }


def _named(settings: Iterable[Any], kind: str) -> Iterator[tuple[Any, str]]:
    for event in settings:
        if event.name == kind:
            try:
                arguments = msgspec.json.decode(bytes(event.args).decode("utf-8", "replace"))
            except NOT_JSON:
                continue
            name = arguments.get("name") if isinstance(arguments, dict) else None
            if isinstance(name, str):
                yield event, name
