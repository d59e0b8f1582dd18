"""Values of a PyTorch trace, some thousand at a time; each distinct text is looked at once."""

from __future__ import annotations

import re
import secrets
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.readers.chrome.cutting import NOT_JSON
from gpusight.readers.paths import file_name
from gpusight.sharing.names import hash_text
from gpusight.sharing.profiler_words import is_group, is_said, is_type
from gpusight.sharing.report import Category, Fate
from gpusight.sharing.torch_names import KERNELS, Naming
from gpusight.sharing.torch_rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from gpusight.sharing.report import Options
    from gpusight.sharing.tally import Tally

    Column: TypeAlias = "list[bytes | None]"

_NUMBERS = re.compile(rb'[^"{]*')
"""The decoder has seen that values are JSON: without texts and objects, numbers are left."""
_QUOTED = re.compile(rb'(?:[-+0-9.eE\[\], \t\r\n"]|[Tt]rue|[Ff]alse|null|0x[0-9a-f]+)*')
_CALENDAR_FROM = 10**14
"""Microseconds since 1970 have sixteen digits today; no other clock of a profiler has fifteen."""
_DATED_FROM = 10**10
"""Microseconds from which a time is not the program's own: clocks since 1970, since the machine was
started, or since the quarter began. PyTorch counts from multiples of 7889238 seconds, so that even
without its base a time is that of the day in some quarter."""
_CALENDAR = re.compile(rb"\d{15}")
_SECOND_US = 10**6
_MARGIN_US = 3600 * _SECOND_US
"""Events may stand before the one that is read first."""
_TRACK = re.compile(r"(?:stream |GPU |thread )?-?\d{1,18} ?")
_THREAD = re.compile(r"thread -?\d{1,18} \((?P<name>.*)\)\s*", re.DOTALL)
_SWITCH = rf"(?:-?\d{{1,9}}|{(1 << 63) - 1}|True|False)"
"""A size, a position or a switch; the largest number stands for the end of a dimension."""
_CONCRETE = re.compile(rf"{_SWITCH}|\[(?:{_SWITCH}(?:, ?|(?=\])))*\]")
_CATEGORIES = {Rule.WORD: Category.UNKNOWN, Rule.GROUP: Category.PROGRAM_TEXTS}
"""What a text tells that is none of the words of its rule."""
_MOST_KEPT = 1 << 16
_FIRST_TRACK = 1_000_000
"""Labels of tracks are numbered below zero from here: no track of a profiler is."""
_NULL = b"null"
_NOTHING = b'""'


class _Memo(dict[bytes, "bytes | None"]):
    """What was made of a text, so that each is looked at once; forgets rather than grows."""

    def __init__(self, clean: Callable[[bytes], bytes | None]) -> None:
        super().__init__()
        self._clean = clean

    def __missing__(self, raw: bytes) -> bytes | None:
        if len(self) > _MOST_KEPT:
            self.clear()
        cleaned = self[raw] = self._clean(raw)
        return cleaned


class Values:
    """Writes columns of values as they may stand in the copy, and counts what they tell."""

    def __init__(self, options: Options, tally: Tally) -> None:
        self._tally = tally
        self._hashed = options.hash_names
        self._salt = options.salt or secrets.token_bytes(32)
        self._memos: dict[Any, _Memo] = {}
        self._tracks: dict[str, int] = {}
        self._shift_us: int | None = None

    def column(self, rule: Rule, where: str, raw: Sequence[Any]) -> Column:
        """Write the values of one key."""
        if rule in (Rule.NUMBERS, Rule.QUOTED):
            return self._numbers(_NUMBERS if rule is Rule.NUMBERS else _QUOTED, where, raw)
        if rule is Rule.TIME:
            return self._times(where, raw)
        values = list(map(bytes, raw))
        if rule is Rule.TRACK:
            self._tally.add_all(Category.PROCESS_NUMBERS, where, Fate.KEPT, set(values))
        memo = self._memo((rule, where), lambda text: self._text(rule, where, text))
        return [memo[value] for value in values]

    def names(self, naming: Naming | None, where: str, raw: Sequence[Any]) -> Column:
        """Write names of events; those that no rule is for are the profiler's own words."""
        if naming is None:
            return self.column(Rule.WORD, where, raw)
        memo = self._memo((naming, where), lambda text: self._name(naming, where, text))
        return [memo[bytes(value)] for value in raw]

    def labels(self, category: Category, where: str, raw: Sequence[Any]) -> Column:
        """Write names of processes and threads: known ones, and None for all others."""
        memo = self._memo((category, where), lambda text: self._label(category, where, text))
        return [memo[bytes(value)] for value in raw]

    def _memo(self, key: Any, clean: Callable[[bytes], bytes | None]) -> _Memo:
        if key not in self._memos:
            self._memos[key] = _Memo(clean)
        return self._memos[key]

    # Numbers --------------------------------------------------------------------------------------

    def _numbers(self, pattern: re.Pattern[bytes], where: str, raw: Sequence[Any]) -> Column:
        if pattern.fullmatch(b"\n".join(raw)):
            return list(raw)
        return [self._number(pattern, where, bytes(value)) for value in raw]

    def _number(self, pattern: re.Pattern[bytes], where: str, value: bytes) -> bytes:
        if pattern.fullmatch(value):
            return value
        self._tally.add(Category.UNKNOWN, f"{where}: no number", Fate.REMOVED, value)
        return _NULL

    def _times(self, where: str, raw: Sequence[Any]) -> Column:
        values = self._numbers(_QUOTED, where, raw)
        if self._shift_us == 0 and not _CALENDAR.search(b"\n".join(v or b"" for v in values)):
            return values
        return [self._shifted(where, bytes(value or b"")) for value in values]

    def _shifted(self, where: str, value: bytes) -> bytes:
        """Count a time from a new origin, digit by digit, where it would show the date."""
        try:
            time = Decimal(value.decode().strip('"'))
        except InvalidOperation:
            return value
        if not time.is_finite() or time == 0:
            return value
        # The first time decides for all: what is cut at a threshold would be torn apart there.
        if self._shift_us is None or (self._shift_us == 0 and time >= _CALENDAR_FROM):
            self._shift_us = self._origin(where, int(time))
        if not self._shift_us or time < min(self._shift_us, _DATED_FROM):
            return value
        return f"{time - self._shift_us:f}".encode()

    def _origin(self, where: str, time_us: int) -> int:
        if time_us < _DATED_FROM:
            return 0
        self._tally.add(Category.CAPTURE_TIME, where, Fate.REMOVED, 0)
        return time_us // _SECOND_US * _SECOND_US - _MARGIN_US

    # Texts ----------------------------------------------------------------------------------------

    def _name(self, naming: Naming, where: str, raw: bytes) -> bytes:
        text = text_of(raw)
        if text is None:
            return _NULL
        cleaned = naming.clean(text, self._salt if self._hashed else None)
        changed = Fate.HASHED if self._hashed else Fate.SHORTENED
        fate = Fate.KEPT if cleaned == text else changed
        self._tally.add(naming.category, where, fate, text)
        self._tally.hide(naming.category, text)
        if not self._hashed:
            self._tally.keep(cleaned)
        return _json(cleaned)

    def _text(self, rule: Rule, where: str, raw: bytes) -> bytes:
        if rule is Rule.TYPES:
            return _json(_each(_value_of(raw), is_type))
        if rule is Rule.CONCRETE:
            return self._concrete(where, raw)
        if rule is Rule.KERNEL:
            return self._name(KERNELS, where, raw)
        text = text_of(raw)
        if text is None:
            return self._number(_NUMBERS, where, raw)
        if rule is Rule.TRACK:
            return self._track(text)
        known = is_group(text) if rule is Rule.GROUP else is_said(text) or is_type(text)
        return _json(text) if known else self._hashed_always(_CATEGORIES[rule], where, text)

    def _hashed_always(self, category: Category, where: str, text: str) -> bytes:
        """Hash a text that stands in no copy; equal ones stay equal."""
        self._tally.add(category, where, Fate.HASHED, text)
        self._tally.hide(category, text)
        return _json(hash_text(text, self._salt))

    def _concrete(self, where: str, raw: bytes) -> bytes:
        value = _value_of(raw)
        kept = _each(value, lambda text: _CONCRETE.fullmatch(text) is not None)
        self._tally.add(Category.VALUES, where, Fate.SHORTENED, raw)
        return _json(kept)

    def _track(self, text: str) -> bytes:
        if _TRACK.fullmatch(text) or is_said(text):
            return _json(text)
        self._tally.add(Category.THREAD_NAMES, "labels of tracks", Fate.REMOVED, text)
        number = self._tracks.setdefault(text, len(self._tracks))
        return b"%d" % -(_FIRST_TRACK + number)

    def _label(self, category: Category, where: str, raw: bytes) -> bytes | None:
        text = text_of(raw)
        if text is None:
            return None
        thread = _THREAD.fullmatch(text)
        name = file_name(thread["name"] if thread else text).strip()
        if is_said(name):
            return raw if thread or "/" not in text else _json(name)
        self._tally.add(category, where, Fate.REMOVED, text)
        self._tally.hide(category, text)
        return None


def text_of(raw: bytes) -> str | None:
    """Read a JSON text, whatever its encoding; None where it is none."""
    value = _value_of(raw)
    return value if isinstance(value, str) else None


def _value_of(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw.decode("utf-8", "replace"))
    except NOT_JSON:
        return None


def _each(value: Any, known: Callable[[str], bool], depth: int = 0) -> Any:
    """Empty the texts of a list that are not known; what is no list of texts is left out."""
    if isinstance(value, str):
        return value if known(value) else ""
    if isinstance(value, list) and depth < 2:
        return [_each(one, known, depth + 1) for one in value]
    return None


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
