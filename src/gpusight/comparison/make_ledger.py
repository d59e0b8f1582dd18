"""The ledgers of the steps of a digest and of the time between them, as series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.devices import device_names
from gpusight.analyses.ledger.hosts import host_time
from gpusight.analyses.ledger.ledger import account
from gpusight.analyses.schedule.build import build
from gpusight.comparison.blocks import rounded_parts
from gpusight.comparison.naming import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.analyses.ledger.ledger import Account
    from gpusight.analyses.steps.focus import Focus
    from gpusight.comparison.blocks import Blocks, Floats
    from gpusight.comparison.digest import Series
    from gpusight.model.trace import Trace

_LEAST_WORK = 0.01
"""Of the work of the busiest GPU: a stray copy does not make a GPU one that the program uses."""
NO_NAME = "unknown GPU"


@dataclass(frozen=True)
class Shared:
    """How the time of the steps, and between, was shared among entries; means over GPUs."""

    gpus: tuple[str, ...]
    steps: dict[str, Floats]
    """Mean a step by block, as is the next."""
    between: dict[str, Floats]
    notes: tuple[str, ...]


def summing_to(whole: Series, entries: dict[str, Floats]) -> dict[str, Series]:
    """Give whole numbers that sum to those of the blocks, for the entries that hold any time."""
    parts = rounded_parts(np.stack(list(entries.values())), whole)
    return {name: row for name, row in zip(entries, parts, strict=True) if any(row)}


def account_for(
    trace: Trace, focus: Focus, blocks: Blocks, process: int | None, work: pl.DataFrame
) -> Shared:
    """Say where the time of the steps went, and that between, on the GPUs the process used."""
    starts, ends = blocks.pauses
    end = max(focus.end_ns, int(blocks.done_ns[-1]), *ends.tolist()[-1:])
    schedule = build(trace, focus.start_ns, end, process=process)
    used, strayed = _used(work)
    accounts = [a for a in account(schedule, host_time(trace, schedule)) if a.device in used]
    names = device_names(trace)
    return Shared(
        tuple(plain(names.get(one.device) or NO_NAME) for one in accounts),
        _mean(accounts, lambda one: blocks.mean(one.between(blocks.begun_ns, blocks.done_ns).T)),
        _mean(accounts, lambda one: blocks.mean_after(one.between(starts, ends).T)),
        tuple(_notes(used, strayed)),
    )


def _used(work: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Tell the GPUs that the program uses from those that hardly did anything."""
    by_device = work.group_by("device").agg(pl.col("ns").sum()).sort("device")
    enough = by_device["ns"] >= _LEAST_WORK * by_device["ns"].max()  # type: ignore[operator]
    return by_device.filter(enough)["device"].to_list(), by_device.filter(~enough)[
        "device"
    ].to_list()


def _mean(accounts: Sequence[Account], means: Callable[[Account], Floats]) -> dict[str, Floats]:
    """Average entries over GPUs."""
    found: dict[str, Floats] = {}
    for one in accounts:
        for name, row in zip(one.names, means(one), strict=True):
            found[name] = found.get(name, 0) + row / len(accounts)
    return found


def _notes(used: Sequence[int], strayed: Sequence[int]) -> list[str]:
    notes = []
    if len(used) > 1:
        notes.append(
            f"kernels, copies and phases are summed over {len(used)} GPUs, the ledger is their mean"
        )
    if strayed:
        numbers = ", ".join(map(str, strayed))
        notes.append(f"hardly anything ran on GPU {numbers}: the ledger leaves it out")
    return notes
