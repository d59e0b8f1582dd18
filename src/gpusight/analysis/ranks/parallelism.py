"""How a job is parallel, from the process groups of its collectives.

All-to-alls exchange tokens between experts, sends and receives connect pipeline stages, all-gathers
with reduce-scatters move shards of parameters. An all-reduce belongs to data or to tensor
parallelism: where a job has both, groups of neighboring ranks are tensor parallel, as frameworks
number ranks; where it has one kind of groups, that of all ranks is data parallel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.naming.collective_names import POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest


DATA, TENSOR, PIPELINE, EXPERT, SHARDED = "DP", "TP", "PP", "EP", "FSDP"
_MIN_BYTES_SHARE = 0.01
"""Groups that move less than this part of all bytes synchronize metrics, not the model."""
_MIN_PER_STEP = 1


@dataclass(frozen=True, slots=True)
class ParallelDimension:
    """Groups of ranks that share one kind of work."""

    kind: str
    """`DP`, `TP`, `PP`, `EP` or `FSDP`."""
    size: int | None
    """Ranks of a group; None where the captures do not have it."""
    groups: tuple[tuple[int, ...], ...]
    collectives: tuple[str, ...]
    """Kinds of collectives that these groups run."""

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "kind": self.kind,
            "size": self.size,
            "groups": [list(ranks) for ranks in self.groups],
            "collectives": list(self.collectives),
        }


@dataclass
class _Group:
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: int = 0


def parallelism(digests: Sequence[RankDigest]) -> tuple[ParallelDimension, ...]:
    """Return the dimensions of a job that its collectives show; none where groups are unknown."""
    groups: dict[tuple[int, ...], _Group] = defaultdict(_Group)
    sends = set()
    steps = max((len(digest.steps) for digest in digests), default=1)
    for digest in digests:
        table = digest.collectives
        for key, step in zip(table.key, table.step, strict=True):
            shared = table.keys[key]
            if step is None:
                continue
            ranks = _ranks(shared.group_ranks)
            if shared.kind in POINT_TO_POINT:
                sends.add(digest.number)
                groups[ranks].kinds["send_recv"] += bool(ranks)
            elif len(ranks) > 1:
                group = groups[ranks]
                group.kinds[shared.kind] += 1
                group.bytes += shared.bytes or 0
    total = sum(group.bytes for group in groups.values())
    used = {
        ranks: group
        for ranks, group in groups.items()
        if ranks
        and sum(group.kinds.values()) >= _MIN_PER_STEP * steps
        and ("send_recv" in group.kinds or group.bytes >= _MIN_BYTES_SHARE * total)
    }
    return _dimensions(used, sends)


def _ranks(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(sorted(msgspec.json.decode(text, type=list[int])))
    except msgspec.DecodeError:
        return ()  # PyTorch shortens long lists


def _dimensions(
    groups: Mapping[tuple[int, ...], _Group], sends: set[int]
) -> tuple[ParallelDimension, ...]:
    by_kind: dict[str, dict[tuple[int, ...], _Group]] = defaultdict(dict)
    reducing = {ranks: group for ranks, group in groups.items() if _kind(group) is None}
    strides = {_stride(ranks) for ranks in reducing}
    both = len(strides) > 1
    for ranks, group in groups.items():
        kind = _kind(group)
        if kind is None:
            near = _stride(ranks) == min(strides)
            kind = TENSOR if both and near else DATA
        by_kind[kind][ranks] = group
    if sends and PIPELINE not in by_kind:
        by_kind[PIPELINE] = {}
    return tuple(
        ParallelDimension(
            kind,
            max(map(len, by_kind[kind]), default=None),
            tuple(sorted(by_kind[kind])),
            tuple(sorted({word for group in by_kind[kind].values() for word in group.kinds})),
        )
        for kind in (DATA, SHARDED, TENSOR, PIPELINE, EXPERT)
        if kind in by_kind
    )


def _kind(group: _Group) -> str | None:
    """Name what a group is for; None for one that reduces, of data or tensor parallelism."""
    kinds = group.kinds
    if "all_to_all" in kinds:
        return EXPERT
    if "send_recv" in kinds:
        return PIPELINE
    if "all_gather" in kinds and "reduce_scatter" in kinds:
        return SHARDED
    return None


def _stride(ranks: tuple[int, ...]) -> int:
    return min((b - a for a, b in pairwise(ranks)), default=1)
