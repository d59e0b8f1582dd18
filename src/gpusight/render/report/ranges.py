"""Ranges as a flame chart, which the page's script draws, and as a tree, which is there anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.render.cells import safe_text, shorten_middle
from gpusight.render.pictures.page import safe_json
from gpusight.render.report import markup
from gpusight.result import NotApplicable
from gpusight.units import MISSING, format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.reporting.tree import RangeTree

_LISTED = 600
"""Nodes of the tree; the flame chart has them all."""
_NAME = 120
_BESIDE = 40
"""Nodes within one that are listed one by one."""
_OPEN = 3
"""Levels that are open when the page is."""


def ranges_section(tree: RangeTree | NotApplicable) -> markup.Section | None:
    """Write the section; None where the capture has no ranges."""
    if isinstance(tree, NotApplicable):
        return None
    body = "\n".join(
        (markup.lead(_lead(tree)), _flame(tree), _tree(tree), markup.notes(tree.notes))
    )
    return markup.Section("ranges", "Ranges", body)


def _lead(tree: RangeTree) -> str:
    threads = f" on {tree.threads:,} threads" if tree.threads > 1 else ""
    many = "1 range" if tree.ranges == 1 else f"{tree.ranges:,} ranges"
    text = f"{many}{threads}, by what lies within what. Numbers in names that count are `#`."
    if tree.gpu_ns is not None:
        text += " GPU time is the work that any thread launched while a range was open."
    return text


# The flame chart ----------------------------------------------------------------------------------


def _flame(tree: RangeTree) -> str:
    """Give the nodes to the page's script; without it the tree says the same."""
    data = safe_json(flame_data(tree))
    return (
        '<div class="flame" hidden></div>'
        f'<script type="application/json" class="flame-data">{data}</script>'
    )


def flame_data(tree: RangeTree) -> dict[str, Any]:
    """Give the tree in columns, names cut so that the page stays small."""
    return {
        "names": [_cut(name) for name in tree.names],
        "name": tree.name.tolist(),
        "parent": tree.parent.tolist(),
        "calls": tree.calls.tolist(),
        "host": tree.host_ns.tolist(),
        "gpu": None if tree.gpu_ns is None else tree.gpu_ns.tolist(),
        "smaller": tree.smaller.tolist(),
    }


def _cut(name: str) -> str:
    """Cut a name to what takes no more than its room as JSON either."""
    safe = safe_text(name[: 8 * _NAME])
    width = _NAME
    while len(safe_json(shorten_middle(safe, width))) > _NAME + 2 and width > 1:
        width = width * 3 // 4
    return shorten_middle(safe, width)


# The tree -----------------------------------------------------------------------------------------


def _tree(tree: RangeTree) -> str:
    inside: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent.tolist()[:_LISTED]):
        inside.setdefault(parent, []).append(node)
    gpu = "<b>GPU work</b>" if tree.gpu_ns is not None else ""
    heads = (
        f'<p class="heads" aria-hidden="true"><span>Range</span><b>Host</b>{gpu}<b>Times</b></p>'
    )
    listed = "".join(_nodes(tree, inside, -1, 0))
    more = markup.more(len(tree) - _LISTED, "nodes are in the flame chart")
    return f'<div class="tree">{heads}<ul>{listed}</ul></div>{more}'


def _largest(tree: RangeTree) -> list[int]:
    """Choose the nodes that are listed; nothing is larger than what it lies in."""
    sizes = [tree.host_ns / max(1, tree.host_total_ns)]
    if tree.gpu_ns is not None:
        sizes.append(tree.gpu_ns / max(1, tree.gpu_total_ns))
    order = np.argsort(-np.maximum.reduce(sizes), kind="stable")
    return sorted(order[:_LISTED].tolist())


def _nodes(tree: RangeTree, inside: dict[int, list[int]], parent: int, level: int) -> Iterator[str]:
    """Write the nodes within one; the tree is at most as deep as levels are looked at."""
    children = inside.get(parent, [])
    for node in children[:_BESIDE]:
        line = _line(tree, [node], _name(tree, node))
        if node in inside:
            is_open = " open" if level < _OPEN else ""
            yield f"<li><details{is_open}><summary>{line}</summary><ul>"
            yield from _nodes(tree, inside, node, level + 1)
            yield "</ul></details></li>"
        else:
            yield f'<li class="leaf">{line}</li>'
    if rest := children[_BESIDE:]:
        yield f'<li class="leaf">{_line(tree, rest, f"<i>{len(rest):,} more</i>")}</li>'


def _name(tree: RangeTree, node: int) -> str:
    number = int(tree.name[node])
    if number < 0:
        return f"<i>{int(tree.smaller[node]):,} smaller</i>"
    return markup.clipped(tree.names[number], 2 * _NAME)


def _line(tree: RangeTree, nodes: list[int], name: str) -> str:
    """Write the numbers of a node, or of several together, behind a name."""
    host, calls = (int(values[nodes].sum()) for values in (tree.host_ns, tree.calls))
    gpu = ""
    if tree.gpu_ns is not None:
        work = int(tree.gpu_ns[nodes].sum())
        gpu = f'<b title="GPU work">{format_time(work) if work else MISSING}</b>'
    share = format_share(host / max(1, tree.host_total_ns))
    return (
        f'<span>{name}</span><b title="Host time, {share}">{format_time(host)}</b>{gpu}'
        f'<b title="Times">{format_count(calls)}</b>'
    )
