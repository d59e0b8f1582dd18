"""Messages of a report as they may stand in a copy, and what was found in them."""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING

from gpusight.readers.protobuf.wire import WireError, read_varint
from gpusight.sharing.hidden import without_homes
from gpusight.sharing.names import hash_kernel, hash_range, hash_text
from gpusight.sharing.ncu_fields import COUNTER, SECTION, VALUE, Kind, Removed
from gpusight.sharing.ncu_wire import block, fields_of
from gpusight.sharing.ncu_words import is_metric_text
from gpusight.sharing.profiler_words import described
from gpusight.sharing.report import Category, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpusight.sharing.ncu_fields import Spec
    from gpusight.sharing.report import Options
    from gpusight.sharing.tally import Tally

_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_VALUE = (
    rb"(?:\x05\x15.{4}|\x09\x19.{8}|[\x02-\x06]\x20" + _VARINT + rb"|[\x02-\x0b]\x28" + _VARINT
) + rb"|\x00)"
_PART = rb"\x1a[\x00-\x7f](?:\x0a" + _VALUE + rb")?\x12" + _VALUE
_PLAIN = re.compile(
    rb"\x08"
    + _VARINT
    + rb"(?:\x12"
    + _VALUE
    + rb")?(?:"
    + _PART
    + rb")*(?:\x20"
    + _VARINT
    + rb")?",
    re.DOTALL,
)
"""A counter that holds numbers alone: as nearly all do, and they may have thousands of parts."""
_IDENTIFYING = re.compile(r"uuid|attribute_pci_|serial|luid|board_id", re.IGNORECASE)
_KERNEL_NAME = "launch__kernel_name"
_DISPLAY_NAME = re.compile(r"display_name|device_name")
_RELEASE = re.compile(
    rb"\d[\d.]{0,30}(?: \(build \d{1,10}\))?(?: \((?:public|internal)-release\))?"
)
_DEFAULT_DOMAIN = "<default domain>"
_MOST_SECTIONS = 1024
_LONGEST_TEXT = 1 << 16
"""Of what may be a text; binaries are longer."""


class Messages:
    """Writes messages by the description of their fields."""

    def __init__(self, options: Options, tally: Tally, strings: Sequence[str]) -> None:
        self._hashed = options.hash_names
        self._salt = options.salt or secrets.token_bytes(32)
        self._tally = tally
        self._strings = strings
        self._known = frozenset(strings)
        self._sections: dict[bytes, bytes] = {}
        self._writers: Mapping[Kind, Callable[[bytes], bytes | None]] = {
            Kind.KERNEL: self._kernel,
            Kind.RANGE: self._range,
            Kind.MACHINE: self._machine,
            Kind.VERSION: lambda raw: raw if _RELEASE.fullmatch(raw) else self._machine(raw),
            Kind.METRIC: self._mention,
            Kind.LABEL: self._label,
            Kind.COUNTER: self._counter,
            Kind.ATTRIBUTE: self._attribute,
            Kind.SECTION: self._section,
        }

    def cleaned(self, data: bytes, spec: Spec) -> bytes:
        """Write a message with the fields that its description has."""
        written: list[bytes] = []
        for number, first, start, end, is_bytes in fields_of(data):
            rule = spec.get(number)
            if rule is Kind.NUMBERS and not is_bytes:
                written.append(data[first:end])
            elif isinstance(rule, Removed):
                self._remove(rule, data[start:end], is_text=is_bytes)
            elif not is_bytes or rule is None or rule is Kind.NUMBERS:
                self._tally.add(Category.UNKNOWN, "fields", Fate.REMOVED, (number, *spec))
            else:
                content = self._content(data[start:end], rule)
                if content is not None:
                    written.append(block(number, content))
        return b"".join(written)

    def _remove(self, rule: Removed, data: bytes, *, is_text: bool) -> None:
        self._tally.add(rule.category, rule.where, Fate.REMOVED, data)
        if is_text and len(data) < _LONGEST_TEXT:
            # A command line names metrics, and those stand in the copy.
            words = (word for word in _text(data).split() if not is_metric_text(word))
            self._tally.hide(rule.category, " ".join(words))

    def _content(self, data: bytes, rule: Kind | Spec) -> bytes | None:
        """Write what a field holds; None where nothing of it is left, or it cannot be read."""
        try:
            if not isinstance(rule, dict):
                return self._writers[rule](data)
            cleaned = self.cleaned(data, rule)
        except WireError:
            self._tally.add(Category.UNKNOWN, "damaged fields", Fate.REMOVED, data)
            return None
        return cleaned if cleaned or not data else None

    def metric(self, name: str) -> str:
        """Write the name of a metric: the profiler's own, unless someone defined one."""
        if is_metric_text(name):
            return name
        self._tally.add(Category.PROGRAM_TEXTS, "names of metrics", self._fate(), name)
        return hash_text(name, self._salt) if self._hashed else name

    def _fate(self) -> Fate:
        return Fate.HASHED if self._hashed else Fate.KEPT

    # Texts ----------------------------------------------------------------------------------------

    def _kernel(self, raw: bytes) -> bytes:
        name = _text(raw)
        if not name:
            return b""
        self._tally.add(Category.KERNEL_NAMES, Kind.KERNEL.value, self._fate(), name)
        return hash_kernel(name, self._salt).encode() if self._hashed else self._kept(name, raw)

    def _range(self, raw: bytes) -> bytes:
        name = _text(raw)
        if name in ("", _DEFAULT_DOMAIN):
            return raw
        self._tally.add(Category.PROGRAM_TEXTS, Kind.RANGE.value, self._fate(), name)
        return hash_range(name, self._salt).encode() if self._hashed else self._kept(name, raw)

    def _kept(self, name: str, raw: bytes) -> bytes:
        kept = without_homes(name)
        self._tally.keep(kept)
        return raw if kept == name else kept.encode()

    def _machine(self, raw: bytes) -> bytes:
        said = _text(raw)
        kept = described(said)
        fate = Fate.KEPT if kept == said else Fate.SHORTENED
        self._tally.add(Category.MACHINE, Kind.MACHINE.value, fate, said)
        return kept.encode()

    def _mention(self, raw: bytes) -> bytes:
        """Write the name of a metric where it is only spoken of: if the report has such a one."""
        name = _text(raw)
        return self.metric(name).encode() if name in self._known else self._label(raw)

    def _label(self, raw: bytes) -> bytes:
        label = _text(raw)
        if is_metric_text(label):
            return raw
        self._tally.add(Category.PROFILER, Kind.LABEL.value, Fate.HASHED, label)
        return hash_text(label, self._salt).encode()

    # Counters -------------------------------------------------------------------------------------

    def _counter(self, raw: bytes) -> bytes | None:
        name = self._name_of(raw)
        if _is_identifying(name):
            self._tally.add(Category.HARDWARE_IDS, "counters", Fate.REMOVED, name)
            return None
        if _PLAIN.fullmatch(raw):
            return raw
        return self.cleaned(raw, _with_texts(COUNTER, _kind_of_texts(name)))

    def _name_of(self, raw: bytes) -> str:
        """Give the name of a counter, whose number comes first in it."""
        if raw[:1] != b"\x08":
            return ""
        number, _ = read_varint(raw, 1, len(raw))
        return self._strings[number] if number < len(self._strings) else ""

    def _attribute(self, raw: bytes) -> bytes | None:
        name = next((_text(raw[f.start : f.end]) for f in fields_of(raw) if f.number == 1), "")
        if _is_identifying(name):
            self._tally.add(Category.HARDWARE_IDS, "attributes of devices", Fate.REMOVED, name)
            return None
        value = _with_texts(VALUE, _kind_of_texts(name))
        return self.cleaned(raw, {1: Kind.METRIC, 2: value})

    def _section(self, raw: bytes) -> bytes:
        """Write a section; those of the launches of a report are alike."""
        if raw not in self._sections:
            if len(self._sections) >= _MOST_SECTIONS:
                self._sections.clear()
            self._sections[raw] = self.cleaned(raw, SECTION)
        return self._sections[raw]


@lru_cache(maxsize=1 << 14)
def _is_identifying(name: str) -> bool:
    """Tell whether a metric says which very GPU or slot it was."""
    return _IDENTIFYING.search(name) is not None


def _kind_of_texts(name: str) -> Kind:
    """Tell what the texts of a counter are."""
    if name == _KERNEL_NAME:
        return Kind.KERNEL
    return Kind.MACHINE if _DISPLAY_NAME.search(name) else Kind.LABEL


def _with_texts(spec: Spec, kind: Kind) -> Spec:
    """Give the description of a counter whose texts are of a kind."""
    if kind is Kind.LABEL:
        return spec
    return {
        number: kind
        if rule is Kind.LABEL
        else _with_texts(rule, kind)
        if isinstance(rule, dict)
        else rule
        for number, rule in spec.items()
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def used_names(data: bytes, field: int) -> set[int]:
    """Give the numbers of the names that the counters of a result have."""
    found = set()
    for number, _, start, end, is_bytes in fields_of(data):
        if number == field and is_bytes and data[start : start + 1] == b"\x08":
            found.add(read_varint(data, start + 1, end)[0])
    return found
