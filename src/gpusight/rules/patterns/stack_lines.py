"""The lines of the program behind idle time, calls and host work, where stacks were recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.capture_info import stack_sources
from gpusight.analysis.ledger.device_ledger import account
from gpusight.rules.context import memoize
from gpusight.rules.finding import StackLine
from gpusight.rules.formatting import quoted_name
from gpusight.rules.rule import FindingLocation

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.host_stacks import HostStacks, SpreadTime
    from gpusight.analysis.ledger.ledger_entries import IdleCause
    from gpusight.rules.context import RuleContext
    from gpusight.trace.intervals import Ints


MAX_LINES = 5
MIN_TITLE_SHARE = 0.3
"""Least part of a finding's time in one line for its title to name that line."""


@memoize
def _stacks(context: RuleContext) -> HostStacks | None:
    if not stack_sources(context.trace):
        return None
    from gpusight.analysis.hotspots.host_stacks import host_stacks

    return host_stacks(context.trace)


@memoize
def _idle(context: RuleContext) -> pl.DataFrame:
    """Return the idle time of the busiest GPU by `node` and `cause`."""
    from gpusight.analysis.hotspots.stack_times import idle_stacks, launch_stacks

    stacks = _stacks(context)
    assert stacks is not None
    accounts = account(context.schedule, context.hosts)
    own = next(a for a in accounts if a.device == context.device)
    ops = launch_stacks(context.trace, stacks, context.schedule)
    return idle_stacks(context.trace, stacks, context.schedule, context.hosts, own, ops)


def lines_behind(context: RuleContext, *causes: IdleCause) -> tuple[StackLine, ...]:
    """Return the lines that the host was at while the busiest GPU was idle for these causes."""
    stacks = _stacks(context)
    if stacks is None:
        return ()
    idle = _idle(context).filter(pl.col("cause").is_in([int(cause) for cause in causes]))
    return _lines(stacks, idle["node"].to_numpy(), idle["ns"].to_numpy())


def lines_before(context: RuleContext, calls: Ints, ns: Ints) -> tuple[StackLine, ...]:
    """Return the lines that the host was at in this time before each call."""
    starts = context.schedule.calls.start_ns[calls]
    return _lines_between(context, calls, starts - ns, starts)


def lines_in(context: RuleContext, calls: Ints) -> tuple[StackLine, ...]:
    """Return the lines that made these calls, by their time."""
    own = context.schedule.calls
    return _lines_between(context, calls, own.start_ns[calls], own.end_ns[calls])


def compiled_before(context: RuleContext, calls: Ints, ns: Ints) -> tuple[str, ...]:
    """Return the functions that torch.compile compiled in this time before each call, by time."""
    stacks = _stacks(context)
    if stacks is None or not len(calls):
        return ()
    starts = context.schedule.calls.start_ns[calls]
    spread = _divide_among_stacks(context, stacks, calls, starts - ns, starts)
    tree = stacks.tree
    named = tree.frames["function"].str.extract(_COMPILED).alias("compiled")
    is_compiler = named.is_not_null() & tree.frames["file"].str.ends_with("convert_frame.py")
    node = tree.nearest(is_compiler.fill_null(value=False).to_numpy()[tree.frame])
    inside = np.flatnonzero(spread.node >= 0)
    inside = inside[node[spread.node[inside]] >= 0]
    of_frame = named.gather(tree.frame[node[spread.node[inside]]])
    by_time = pl.DataFrame({"name": of_frame, "ns": spread.ns[inside]}).group_by("name").sum()
    return tuple(by_time.sort("ns", "name", descending=[True, False])["name"])


_COMPILED = r"^_compile (.+ \(.+:\d+\))$"
"""How `gpusight record` names the frame of torch.compile that compiles a function."""


def _lines_between(
    context: RuleContext, calls: Ints, starts: Ints, ends: Ints
) -> tuple[StackLine, ...]:
    stacks = _stacks(context)
    if stacks is None or not len(calls):
        return ()
    spread = _divide_among_stacks(context, stacks, calls, starts, ends)
    return _lines(stacks, spread.node, spread.ns)


def _divide_among_stacks(
    context: RuleContext, stacks: HostStacks, calls: Ints, starts: Ints, ends: Ints
) -> SpreadTime:
    """Divide time of the threads of these calls among the stacks seen in it."""
    schedule = context.schedule
    keys = np.array(schedule.threads, np.int64).reshape(-1, 2)[schedule.calls.thread[calls]]
    threads = stacks.threads_for(context.trace, keys[:, 0], keys[:, 1])
    return stacks.spread(threads, starts, ends)


def _lines(stacks: HostStacks, nodes: Ints, ns: Ints) -> tuple[StackLine, ...]:
    """Sum by line of the program's own code, the largest first."""
    tree, total = stacks.tree, max(1, int(ns.sum()))
    seen = nodes >= 0
    sites = tree.own_sites[nodes[seen]]
    frames = tree.frames[tree.frame[sites]].with_columns(pl.Series("ns", ns[seen], pl.Int64))
    largest = (
        frames.filter(~pl.col("is_library"), pl.col("ns") > 0)
        .group_by("file", "line", "function", maintain_order=True)
        .agg(pl.col("ns").sum(), pl.len().alias("pieces"))
        .sort("ns", descending=True, maintain_order=True)
        .head(MAX_LINES)
    )
    exact = stacks.is_sampled and stacks.has_lines
    return tuple(
        StackLine(file, line, function, float(part), part / total, exact)
        for file, line, function, part, _ in largest.iter_rows()
    )


def line_sites(lines: tuple[StackLine, ...]) -> list[FindingLocation]:
    """Return the lines that ran as locations of a finding."""
    own = [line for line in lines if line.ran and line.file is not None]
    return [FindingLocation("site", line.text, line.ns) for line in own]


def title_with_line(title: str, lines: tuple[StackLine, ...]) -> str:
    """Name the line that has much of the time: `Data loading (`train.py:88 collate`) stalls …`."""
    line = leading_line(lines)
    if line is None:
        return title
    place = f" ({quoted_name(line.text)})"
    named = _NAMED.sub(lambda _: place, title, count=1)
    if named != title:
        return named
    before = _BEFORE_TIME.search(title)
    at = before.start() if before else len(title)
    return f"{title[:at]}{place}{title[at:]}"


_NAMED = re.compile(r" \((?:`[^`]*`(?:, | and )?)+\)| \([^():]*\)(?=:| stalls)")
"""What a title names in parentheses."""
_BEFORE_TIME = re.compile(r": | stalls the GPU")


def leading_line(lines: tuple[StackLine, ...]) -> StackLine | None:
    """Return the line that has much of the time, where it is known which line ran."""
    first = lines[0] if lines else None
    if first is None or not first.ran or first.file is None or first.share < MIN_TITLE_SHARE:
        return None
    return first


def code_with_line(code: str, lines: tuple[StackLine, ...], comment: str) -> str:
    """Say above a snippet which line it is about."""
    line = leading_line(lines)
    return code if line is None or not code else f"{comment} {line.text}\n{code}"


def fix_with_lines(fix: str, lines: tuple[StackLine, ...]) -> str:
    """Name the lines at the end of the advice."""
    shown = [
        f"{quoted_name(line.text)} ({line.share:.0%})" for line in lines[:3] if line.share >= 0.1
    ]
    return f"{fix} Lines: {', '.join(shown)}." if shown else fix
