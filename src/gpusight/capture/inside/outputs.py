"""Where this process writes what it recorded: a name that nobody else has."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.capture.ranks import current_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusight.capture.inside.plan import Plan

STARTED_VARIABLE = "GPUSIGHT_RECORD_STARTED_NS"
"""When the run began: younger files of its name are those of its own processes."""
_PART = ".part"
_TICK_NS = 50_000_000
"""Times of files lag behind the clock by up to one of its ticks."""
_CLOCK_SLACK_NS = 2_000_000_000
"""Clocks of file servers differ, and some file systems keep times to two seconds."""


def note_start() -> None:
    """Remember when the run began, for this process and its children."""
    os.environ.setdefault(STARTED_VARIABLE, str(time.time_ns()))


def own_rank() -> int | None:
    """Give this process's rank if it is one of several.

    The launcher's variables decide. Without them (`torch.multiprocessing.spawn`, Lightning's own
    processes) the program's process group does, once there is one.
    """
    told = current_rank()
    if told is not None:
        return told.rank if told.is_one_of_several else None
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return int(group.get_rank()) if group.get_world_size() > 1 else None


def written(plan: Plan, suffix: str, rank: int | None, write: Callable[[Path], None]) -> Path:
    """Have `write` fill a file, and give it its name once it is whole."""
    from gpusight.capture.names import with_rank  # half of the standard library, only now needed

    base = with_rank(Path(plan.output), rank)
    base.parent.mkdir(parents=True, exist_ok=True)
    for final in _names(base, suffix):
        part = _claimed(final, overwrite=plan.overwrite)
        if part is None:
            continue
        try:
            write(part)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)
        return final
    raise AssertionError("numbers do not end")


def _names(base: Path, suffix: str) -> Iterator[Path]:
    yield base.with_name(f"{base.name}{suffix}")
    number = 1
    while True:
        process = f".pid{os.getpid()}" + (f".{number}" if number > 1 else "")
        yield base.with_name(f"{base.name}{process}{suffix}")
        number += 1


def _claimed(final: Path, *, overwrite: bool) -> Path | None:
    """Create what will become the file, as a sign to other processes that the name is taken.

    Only who made it may look whether the name itself is free, so that two cannot both find it so.
    """
    part = final.with_name(f"{final.name}{_PART}")
    if overwrite and _is_earlier(part, -_CLOCK_SLACK_NS):
        part.unlink(missing_ok=True)
    try:
        part.open("x").close()
    except FileExistsError:
        return None
    if not final.exists() or (overwrite and _is_earlier(final, _clock_ahead_ns(part) - _TICK_NS)):
        return part
    part.unlink()
    return None


def _clock_ahead_ns(made_now: Path) -> int:
    """Tell how far the clock that stamps files is ahead of ours; less where it is coarse."""
    return made_now.stat().st_mtime_ns - time.time_ns()


def _is_earlier(path: Path, ahead_ns: int) -> bool:
    """Tell whether a file is from before this run, by a clock that is ahead of ours by so much."""
    started_ns = int(os.environ.get(STARTED_VARIABLE, "0"))
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns < started_ns + ahead_ns
    return False
