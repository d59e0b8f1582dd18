"""What a PyTorch trace says beside its events, as it may stand in a copy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.sharing.profiler_words import described, is_said
from gpusight.sharing.report import Category, Fate
from gpusight.sharing.torch_rules import (
    DEVICE_NUMBERS,
    GROUP_NUMBERS,
    JOB_NUMBERS,
    REMOVED_TOP,
    TOP_NUMBERS,
    Rule,
)

if TYPE_CHECKING:
    from gpusight.sharing.tally import Tally
    from gpusight.sharing.torch_values import Values

_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,3}")
_MOST_GROUPS = 100_000


class About:
    """Copies what is known of it, and counts the rest."""

    def __init__(self, values: Values, tally: Tally) -> None:
        self._values = values
        self._tally = tally

    def cleaned(self, about: dict[str, Any]) -> dict[str, Any]:
        """Give what may stand in the copy."""
        kept: dict[str, Any] = self._numbers(about, TOP_NUMBERS)
        if is_said(str(about.get("displayTimeUnit", ""))) and "displayTimeUnit" in about:
            kept["displayTimeUnit"] = str(about["displayTimeUnit"])
        for key, clean in (("deviceProperties", self._devices), ("distributedInfo", self._job)):
            if key in about:
                kept[key] = clean(about[key])
        self._count({key: value for key, value in about.items() if key not in kept})
        return kept

    def _count(self, removed: dict[str, Any]) -> None:
        for key, value in removed.items():
            if key in REMOVED_TOP:
                self._tally.add(REMOVED_TOP[key], key, Fate.REMOVED, key)
                self._tally.hide(REMOVED_TOP[key], value if isinstance(value, str) else "")
            else:
                self._tally.add(Category.UNKNOWN, "other keys of the file", Fate.REMOVED, key)

    def _numbers(self, values: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key in known and _is_plain(value)}

    def _devices(self, devices: Any) -> list[dict[str, Any]]:
        described = devices if isinstance(devices, list) else []
        return [self._device(device) for device in described if isinstance(device, dict)]

    def _device(self, device: dict[str, Any]) -> dict[str, Any]:
        kept = self._numbers(device, DEVICE_NUMBERS)
        name = device.get("name")
        if isinstance(name, str):
            kept["name"] = described(name)
            fate = Fate.KEPT if kept["name"] == name else Fate.SHORTENED
            self._tally.add(Category.MACHINE, "deviceProperties: name", fate, name)
        self._leave("deviceProperties", device, kept)
        return kept

    def _job(self, job: Any) -> dict[str, Any]:
        if not isinstance(job, dict):
            return {}
        kept = self._numbers(job, JOB_NUMBERS) | self._texts(job, ("backend",), Rule.WORD)
        groups = job.get("pg_config")
        if isinstance(groups, list):
            kept["pg_config"] = [
                self._group(group) for group in groups[:_MOST_GROUPS] if isinstance(group, dict)
            ]
        self._leave("distributedInfo", job, kept)
        return kept

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        kept = (
            self._texts(group, ("pg_name",), Rule.GROUP, "Process Group Name")
            | self._texts(group, ("pg_desc",), Rule.GROUP, "Process Group Description")
            | self._texts(group, ("backend_config", "backend_type"), Rule.WORD)
            | self._numbers(group, GROUP_NUMBERS)
        )
        self._leave("distributedInfo", group, kept)
        return kept

    def _texts(
        self, values: dict[str, Any], keys: tuple[str, ...], rule: Rule, where: str = ""
    ) -> dict[str, Any]:
        """Copy texts; those that arguments repeat are counted with them."""
        found = {key: values[key] for key in keys if isinstance(values.get(key), str)}
        cleaned = {
            key: self._values.column(
                rule, f"args: {where}" if where else key, [msgspec.json.encode(text)]
            )
            for key, text in found.items()
        }
        return {key: msgspec.json.decode(column[0] or b"null") for key, column in cleaned.items()}

    def _leave(self, where: str, values: dict[str, Any], kept: dict[str, Any]) -> None:
        left = [key for key in values if key not in kept]
        self._tally.add_all(Category.UNKNOWN, f"{where}: other keys", Fate.REMOVED, left)


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a version, or a list of whole numbers."""
    if isinstance(value, list):
        return all(isinstance(one, int) for one in value)
    if isinstance(value, str):
        return _VERSION.fullmatch(value) is not None
    return isinstance(value, (int, float)) or value is None
