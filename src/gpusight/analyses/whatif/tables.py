"""A what-if as tables: the gain of each change, and the ledger before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.result import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.ledger.ledger import DeviceLedger, Ledger
    from gpusight.analyses.whatif.report import WhatIf

FACTS = (
    Field("measured_ns", "Measured", Fmt.TIME, "Time that was replayed, as measured"),
    Field("step_before_ns", "A step now", Fmt.TIME, "Mean time of a step, as measured"),
    Field("step_after_ns", "A step then", Fmt.TIME, "Mean time of a step with all changes"),
    Field("changed_ns", "Then", Fmt.TIME, "The same time with all changes"),
    Field("saved_ns", "Given back", Fmt.TIME, "What all changes give back together"),
    Field("share", "Of the time", Fmt.SHARE, "The same as a part of the time"),
    Field("speedup", "Times faster", Fmt.REAL, "Time before over time after"),
    Field("error", "Replay error", Fmt.SHARE, "By how much the unchanged replay misses the time"),
)
CHANGE_FIELDS = (
    Field("alone_ns", "Alone", Fmt.TIME, "Given back when it is the only change; a step"),
    Field(
        "after_ns", "After those above", Fmt.TIME, "Given back once those above are done; a step"
    ),
    Field("alone_share", "Alone of all", Fmt.SHARE, "Alone, as a part of the time"),
    Field("change", "Change", Fmt.NAME, "What is different"),
)
LEDGER_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("before_ns", "Now", Fmt.TIME, "Time of the entry as measured; a step"),
    Field("after_ns", "Then", Fmt.TIME, "Time of the entry with all changes; a step"),
    Field("delta_ns", "Difference", Fmt.TIME, "The difference; a step"),
    Field("before_share", "Now of all", Fmt.SHARE, "Part of the time as measured"),
    Field("after_share", "Then of all", Fmt.SHARE, "Part of the time with all changes"),
    Field("entry", "Entry", Fmt.TEXT, "What the time goes into"),
)
_TYPES = {Fmt.ID: pl.Int64(), Fmt.TEXT: pl.String(), Fmt.NAME: pl.String()}


def page(result: WhatIf) -> Composite:
    """Lay a what-if out for a screen: times of a step, or of all where no steps are known."""
    of = "a step" if result.steps else "the time"
    return Composite(
        "whatif",
        result.title,
        _facts(result),
        (
            _table(
                "changes", f"What each change gives back of {of}", CHANGE_FIELDS, _changes(result)
            ),
            _table(
                "ledger", f"Where {of} goes, now and then", _ledger_fields(result), _entries(result)
            ),
        ),
        meta=dict(result.meta),
        notes=result.notes,
    )


def _facts(result: WhatIf) -> tuple[Fact, ...]:
    each = result.per_step
    values = {
        "measured_ns": result.measured_ns,
        "changed_ns": result.changed_ns,
        "saved_ns": result.saved_ns,
        "share": result.share,
        "speedup": result.unchanged_ns / result.changed_ns if result.changed_ns else None,
        "error": result.error,
    }
    if result.steps:
        values |= {
            "step_before_ns": result.measured_ns / each,
            "step_after_ns": result.changed_ns / each,
            "saved_ns": result.saved_ns / each,
        }
        del values["measured_ns"], values["changed_ns"]
    return tuple(
        Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS if f.key in values
    )


def _changes(result: WhatIf) -> list[dict[str, object]]:
    each = result.per_step
    return [
        {
            "alone_ns": one.alone_ns / each,
            "after_ns": one.after_ns / each,
            "alone_share": one.alone_ns / max(1, result.unchanged_ns),
            "change": one.change,
        }
        for one in result.changes
    ]


def _ledger_fields(result: WhatIf) -> tuple[Field, ...]:
    several = len(result.before.devices) > 1
    return LEDGER_FIELDS if several else LEDGER_FIELDS[1:]


def _entries(result: WhatIf) -> list[dict[str, object]]:
    """Set the entries side by side, by GPU, what changed most first."""
    rows: list[dict[str, object]] = []
    for device in result.before.devices:
        after = _of(result.after, device.device)
        names = dict.fromkeys(e.entry for d in (device, after) if d for e in d.entries)
        pairs = [(name, device.ns(name), after.ns(name) if after else 0) for name in names]
        for name, now, then in sorted(pairs, key=lambda p: (-abs(p[2] - p[1]), -p[1])):
            rows.append(_entry(result, device.device, name, now, then))
    return rows


def _of(ledger: Ledger, device: int) -> DeviceLedger | None:
    return next((one for one in ledger.devices if one.device == device), None)


def _entry(result: WhatIf, device: int, name: str, now: int, then: int) -> dict[str, object]:
    each = result.per_step
    return {
        "device": device,
        "before_ns": now / each,
        "after_ns": then / each,
        "delta_ns": (then - now) / each,
        "before_share": now / max(1, result.measured_ns),
        "after_share": then / max(1, result.changed_ns),
        "entry": name,
    }


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[dict[str, object]]
) -> TableResult:
    schema = {f.key: _TYPES.get(f.fmt, pl.Float64()) for f in fields}
    kept = [{key: row[key] for key in schema} for row in rows]
    return TableResult(command, title, fields, pl.DataFrame(kept, schema=schema))
