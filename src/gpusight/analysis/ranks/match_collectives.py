"""Which collectives of different ranks are the same one.

By NCCL's operation id, or by the sequence number in a process group, where all ranks recorded it.
Else the sequences of (kind, bytes) of a group are aligned: captures begin and end at different
moments, so that order alone would pair wrong ones. Programs repeat the same sequence in every step;
of alignments that match equally well, the right one is that in which ends agree best, because all
ranks leave a collective at nearly the same moment. A constant difference of clocks changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.ranks.unnamed_groups import split_by_ends
from gpusight.naming.collective_names import POINT_TO_POINT, SEND

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.rank_digest import CollectiveKey, RankDigest
    from gpusight.trace.intervals import Ints


ABSENT = -1
BY_OPERATION, BY_SEQUENCE, BY_ORDER, BY_PAIR = (
    "operation id",
    "sequence number",
    "order of kind and bytes",
    "sends and receives in order",
)
_MAX_SHIFT = 2_000
"""Collectives that a capture may begin earlier than another."""
_NEAR_BEST = 0.5
"""Alignments that match at least this part of what the best one matches are candidates: where
collectives are missing in the middle, no shift matches all."""
_WHOLE_SHARE = 0.9
"""Part of the shorter sequence that must overlap, so that nothing seems to be missing in it."""
_MIN_AGREEING = 0.8
"""Part of the pairs whose ends must agree: after a gap, only some of them may be right."""
_SIMILAR = 5.0
"""Alignments whose ends vary at most so many times as much are about as steady."""
_STEADY_NS = 20_000
"""Variation of ends from which on they say less than the program's numbers of steps."""
_FEW_OTHERS = 0.02
"""Part of the collectives that may be in steps of other numbers: at the edges of steps."""
_MAX_WALKED = 64
"""Candidates that are tried."""
_MIN_MATCHED = 0.5
"""Part of the shorter sequence that must match."""
_LOOK_AHEAD = 16
"""Collectives in a row that may be missing in the middle of a sequence."""


@dataclass(frozen=True)
class MatchedCollectives:
    """Collectives (rows) that ranks (columns) ran together, in order of time."""

    keys: tuple[CollectiveKey, ...]
    step: tuple[int | None, ...]
    """Number of the step that launched each; None for one outside."""
    row: Ints
    """Row of each rank's digest; `ABSENT` where a rank took no part, or its capture lacks it."""
    start_ns: Ints
    end_ns: Ints
    exposed_ns: Ints
    how: tuple[str, ...]
    """How they were matched, without repeats."""
    unmatched: int
    """Collectives that only one rank has."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.keys)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rank took part in which."""
        present: NDArray[np.bool_] = self.row != ABSENT
        return present

    @property
    def duration_ns(self) -> Ints:
        """How long each rank was in each; 0 where it took no part."""
        durations: Ints = np.where(self.present, self.end_ns - self.start_ns, 0)
        return durations


def match_collectives(digests: Sequence[RankDigest]) -> MatchedCollectives:
    """Match the collectives of all ranks of a job."""
    rows: list[list[int]] = []
    how: Counter[str] = Counter()
    unmatched = 0
    groups = [(members, False) for members in _by_group(digests).values()]
    groups += [(members, True) for members in _by_pair(digests).values()]
    for members, is_pair in groups:
        if len(members) < 2:
            unmatched += sum(map(len, members.values()))
            continue
        method, instances = (
            (BY_PAIR, _by_order(digests, members)) if is_pair else _match_group(digests, members)
        )
        for instance in instances:
            if len(instance) < 2:
                unmatched += len(instance)
                continue
            how[method] += 1
            rows.append([instance.get(rank, ABSENT) for rank in range(len(digests))])
    return _in_order(digests, rows, tuple(word for word, _ in how.most_common()), unmatched)


Members = dict[int, list[int]]
"""Rows of the digests of ranks, by position of the rank."""


def _by_group(digests: Sequence[RankDigest]) -> dict[tuple[str | None, ...], Members]:
    """Split collectives by process group and by where they run.

    Groups of one name can be different ones on different ranks: then their ranks differ.
    """
    groups: dict[tuple[str | None, ...], Members] = defaultdict(dict)
    for rank, digest in enumerate(digests):
        for row, key in enumerate(digest.collectives.key):
            shared = digest.collectives.keys[key]
            if shared.kind not in POINT_TO_POINT:
                group = (shared.group, _plain(shared.group_ranks), shared.source)
                groups[group].setdefault(rank, []).append(row)
    return groups


def _by_pair(digests: Sequence[RankDigest]) -> dict[tuple[int, int, str], Members]:
    """Split sends and receives by sender and receiver, where the captures have both ranks."""
    places = {digest.rank: place for place, digest in enumerate(digests)}
    pairs: dict[tuple[int, int, str], Members] = defaultdict(dict)
    for place, digest in enumerate(digests):
        table = digest.collectives
        for row, key in enumerate(table.key):
            shared = table.keys[key]
            if shared.kind in POINT_TO_POINT:
                other = places.get(_peer(digest, row))
                if other is not None and other != place:
                    ends = (place, other) if shared.kind == SEND else (other, place)
                    pairs[(*ends, shared.source)].setdefault(place, []).append(row)
    return pairs


def _peer(digest: RankDigest, row: int) -> int | None:
    """Return the rank at the other end: as recorded, or the other one of a group of two."""
    others = other_ranks(digest, row)
    return next(iter(others)) if len(others) == 1 else None


def other_ranks(digest: RankDigest, row: int) -> set[int]:
    """Return the other ranks of a collective, as far as the capture has them."""
    table = digest.collectives
    if table.peer and (peer := table.peer[row]) is not None:
        return {peer}
    members = (_plain(table.keys[table.key[row]].group_ranks) or "").strip("[]").split(",")
    return {int(text) for text in members if text.isdecimal()} - {digest.number}


def sender_and_receiver(digests: Sequence[RankDigest], row: Ints) -> tuple[int, int]:
    """Return the positions of the ranks of a send and receive that were matched."""
    first, second = np.flatnonzero(row != ABSENT).tolist()
    table = digests[first].collectives
    is_send = table.keys[table.key[row[first]]].kind == SEND
    return (first, second) if is_send else (second, first)


def _plain(ranks: str | None) -> str | None:
    return None if ranks is None else ranks.replace(" ", "")


def _match_group(
    digests: Sequence[RankDigest], members: Members
) -> tuple[str, list[dict[int, int]]]:
    for method, column in ((BY_OPERATION, "operation"), (BY_SEQUENCE, "sequence")):
        numbers = {
            rank: [getattr(digests[rank].collectives, column)[row] for row in rows]
            for rank, rows in members.items()
        }
        if all(number is not None for own in numbers.values() for number in own):
            return method, _by_number(digests, members, numbers)
    instances = _by_order(digests, members)
    # Kernels that name no group may be of several.
    of_group = (digests[rank].collectives for rank in members)
    named = any(table.keys[key].group_ranks for table in of_group for key in set(table.key))
    return BY_ORDER, instances if named else split_by_ends(digests, instances)


def _by_number(
    digests: Sequence[RankDigest], members: Members, numbers: dict[int, list[int | None]]
) -> list[dict[int, int]]:
    """Match equal numbers of equal kind; several of one number, as coalesced ones, in order."""
    instances: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for rank, rows in members.items():
        seen: Counter[Hashable] = Counter()
        table = digests[rank].collectives
        for row, number in zip(rows, numbers[rank], strict=True):
            key = (table.keys[table.key[row]].kind, number)
            instances[(*key, seen[key])][rank] = row
            seen[key] += 1
    return list(instances.values())


def _by_order(digests: Sequence[RankDigest], members: Members) -> list[dict[int, int]]:
    """Align the sequence of every rank with the longest one."""
    reference = max(members, key=lambda rank: (len(members[rank]), -rank))
    codes: dict[Hashable, int] = {}
    sequences = {rank: _Sequence.of(digests[rank], rows, codes) for rank, rows in members.items()}
    instances = [{reference: row} for row in members[reference]]
    for rank, own in sequences.items():
        if rank != reference:
            for at, place in _align(sequences[reference], own):
                instances[at][rank] = members[rank][place]
    return instances


@dataclass(frozen=True)
class _Sequence:
    """The collectives of a rank in one group."""

    code: Ints
    """A number for kind and bytes."""
    end_ns: Ints
    step: Ints
    """Number of the step; `ABSENT` outside."""
    numbered: bool
    """The program numbered its steps."""

    @classmethod
    def of(cls, digest: RankDigest, rows: list[int], codes: dict[Hashable, int]) -> _Sequence:
        table = digest.collectives
        keys = [table.keys[table.key[row]] for row in rows]
        kinds = ["" if key.kind in POINT_TO_POINT else key.kind for key in keys]
        named = [(kind, key.bytes) for kind, key in zip(kinds, keys, strict=True)]
        code = [codes.setdefault(name, len(codes)) for name in named]
        steps = [table.step[row] for row in rows]
        return cls(
            np.array(code, np.int64),
            np.array([table.end_ns[row] for row in rows], np.int64),
            np.array([ABSENT if step is None else step for step in steps], np.int64),
            all(str(step.number) in step.name for step in digest.steps) and len(digest.steps) > 1,
        )


def _align(reference: _Sequence, own: _Sequence) -> list[tuple[int, int]]:
    """Return pairs of places that are the same collective."""
    length, other = len(reference.code), len(own.code)
    shifts = range(max(-other + 1, -_MAX_SHIFT), min(length, _MAX_SHIFT + 1))
    counts = {shift: _matching(reference, own, shift) for shift in shifts}
    best = max((count for count, _ in counts.values()), default=0)
    near = [s for s, (count, _) in counts.items() if count >= _NEAR_BEST * best > 0]
    # Nothing is missing in the middle where all that overlaps is equal.
    whole = [s for s in near if counts[s][0] == counts[s][1] >= _WHOLE_SHARE * min(length, other)]
    most = sorted(whole or near, key=lambda s: (-counts[s][0], abs(s)))[:_MAX_WALKED]
    walked = [pairs for shift in most if (pairs := _walk(reference, own, shift))]
    if not walked:
        return []
    steadiest = min(walked, key=lambda pairs: _badness(reference, own, pairs))
    spread_ns = _spread(reference, own, steadiest)
    is_vague = reference.numbered and own.numbered and spread_ns > _STEADY_NS
    limit_ns = np.inf if is_vague else _SIMILAR * (spread_ns + 1.0)
    similar = [pairs for pairs in walked if _spread(reference, own, pairs) <= limit_ns]
    # Among alignments that are about as steady, the program's numbers of steps decide.
    others = [_other_steps(reference, own, pairs) for pairs in similar]
    fewest = min(others) + _FEW_OTHERS * min(length, other)
    same = [pairs for pairs, count in zip(similar, others, strict=True) if count <= fewest]
    pairs = min(same, key=lambda pairs: _badness(reference, own, pairs))
    return pairs if len(pairs) >= _MIN_MATCHED * min(length, other) else []


def _matching(reference: _Sequence, own: _Sequence, shift: int) -> tuple[int, int]:
    """Return how many of the collectives that overlap are equal, and how many overlap."""
    first, last = max(0, shift), min(len(reference.code), len(own.code) + shift)
    equal = reference.code[first:last] == own.code[first - shift : last - shift]
    return int(equal.sum()), last - first


def _badness(
    reference: _Sequence, own: _Sequence, pairs: list[tuple[int, int]]
) -> tuple[float, int, int, int]:
    """Order alignments: how much the difference of ends varies, then pairs, steps and shift."""
    # Spreads of the same size are equally good.
    return (
        round(float(np.log10(_spread(reference, own, pairs) + 1.0)), 1),
        -len(pairs),
        _other_steps(reference, own, pairs),
        abs(pairs[0][0] - pairs[0][1]),
    )


def _spread(reference: _Sequence, own: _Sequence, pairs: list[tuple[int, int]]) -> float:
    at, place = np.array(pairs).T
    apart = reference.end_ns[at] - own.end_ns[place]
    return float(np.quantile(np.abs(apart - np.median(apart)), _MIN_AGREEING))


def _other_steps(reference: _Sequence, own: _Sequence, pairs: list[tuple[int, int]]) -> int:
    """Count the pairs that are in steps of different numbers; some are in no step."""
    at, place = np.array(pairs).T
    first, second = reference.step[at], own.step[place]
    return int(((first != second) & (first != ABSENT) & (second != ABSENT)).sum())


def _walk(reference: _Sequence, own: _Sequence, shift: int) -> list[tuple[int, int]]:
    """Pair equal collectives in order; where some are missing, go on where ends agree again."""
    pairs: list[tuple[int, int]] = []
    at, place = max(0, shift), max(0, -shift)
    while at < len(reference.code) and place < len(own.code):
        if reference.code[at] != own.code[place]:
            at, place = _after_gap(reference, own, at, place, pairs[-1:])
            continue
        pairs.append((at, place))
        at, place = at + 1, place + 1
    return pairs


def _after_gap(
    reference: _Sequence, own: _Sequence, at: int, place: int, last: list[tuple[int, int]]
) -> tuple[int, int]:
    """Return where both sequences go on with equal collectives; the next places for nowhere."""
    rows = np.arange(at, min(at + _LOOK_AHEAD, len(reference.code)))
    columns = np.arange(place, min(place + _LOOK_AHEAD, len(own.code)))
    equal = reference.code[rows][:, None] == own.code[columns]
    if not equal.any():
        return at + 1, place + 1
    skipped = (rows - at)[:, None] + (columns - place)
    apart = reference.end_ns[rows][:, None] - own.end_ns[columns]
    before = [int(reference.end_ns[a] - own.end_ns[b]) for a, b in last]
    moved = np.abs(apart - before[0]) if before else np.zeros_like(apart)
    order = np.lexsort((skipped[equal], moved[equal]))
    row, column = (indices[order[0]] for indices in np.nonzero(equal))
    return at + int(row), place + int(column)


# Order of time ------------------------------------------------------------------------------------


def _in_order(
    digests: Sequence[RankDigest], rows: list[list[int]], how: tuple[str, ...], unmatched: int
) -> MatchedCollectives:
    """Put collectives in order of time, on clocks that agree roughly."""
    row = np.array(rows, np.int64).reshape(len(rows), len(digests))
    columns = ("start_ns", "end_ns", "exposed_ns")
    tables = {name: np.zeros(row.shape, np.int64) for name in columns}
    for rank, digest in enumerate(digests):
        here = row[:, rank] != ABSENT
        for name, table in tables.items():
            values = np.array(getattr(digest.collectives, name), np.int64)
            table[here, rank] = values[row[here, rank]]
    present = row != ABSENT
    common = tables["end_ns"] - clock_offsets(present, tables["end_ns"])
    latest = np.where(present, common, np.iinfo(np.int64).min).max(axis=1, initial=0)
    order = np.argsort(latest, kind="stable")
    first = present.argmax(axis=1) if len(rows) else np.empty(0, np.int64)
    keys, steps = [], []
    for at in order:
        table = digests[first[at]].collectives
        keys.append(table.keys[table.key[row[at, first[at]]]])
        steps.append(_step(digests, row[at]))
    return MatchedCollectives(
        tuple(keys),
        tuple(steps),
        row[order],
        tables["start_ns"][order],
        tables["end_ns"][order],
        tables["exposed_ns"][order],
        how,
        unmatched,
    )


def _step(digests: Sequence[RankDigest], row: Ints) -> int | None:
    """Return the step that most ranks launched a collective in; None outside the window of one."""
    steps: Counter[int | None] = Counter(
        digests[rank].collectives.step[at] for rank, at in enumerate(row.tolist()) if at != ABSENT
    )
    return None if None in steps else steps.most_common(1)[0][0]


def clock_offsets(present: NDArray[np.bool_], end_ns: Ints) -> Ints:
    """Return what the clock of each rank shows more than that of the first; roughly.

    The median difference of ends, from rank to rank that share collectives: good enough to put
    events in order. `clocks` has the exact one.
    """
    ranks = present.shape[1]
    offsets = np.zeros(ranks, np.int64)
    known = np.zeros(ranks, np.bool_)
    while not known.all():
        start = int(np.argmin(known))
        known[start] = True
        waiting = [start]
        while waiting:
            rank = waiting.pop()
            for other in np.flatnonzero(~known):
                both = present[:, rank] & present[:, other]
                if both.any():
                    apart = np.median(end_ns[both, other] - end_ns[both, rank])
                    offsets[other] = offsets[rank] + int(apart)
                    known[other] = True
                    waiting.append(int(other))
    return offsets
