"""Captures that are the same run, names of what they differ in, and parts that do not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.comparison.digest import Digest


# The same run ------------------------------------------------------------------------------------


def content(digest: Digest) -> bytes:
    """Give what a capture measured, whatever it is called."""
    bare = msgspec.structs.replace(digest, label="", notes=())
    return msgspec.json.encode(bare)


def each_once(digests: Sequence[Digest]) -> tuple[list[Digest], list[str]]:
    """Leave out copies of a capture, which would pass for repeats; say which they are."""
    first: dict[bytes, Digest] = {}
    notes = []
    for digest in digests:
        kept = first.setdefault(content(digest), digest)
        if kept is not digest:
            notes.append(f"{kept.label} and {digest.label} are the same capture: counted once")
    return list(first.values()), list(dict.fromkeys(notes))


# Names --------------------------------------------------------------------------------------------


def differing(
    before: Sequence[Digest], after: Sequence[Digest], of: Callable[[Digest], str]
) -> str:
    """Show what captures differ in; empty where all are alike."""
    sides = [sorted({of(one) for one in side}) for side in (before, after)]
    if sides[0] == sides[1] and len(sides[0]) == 1:
        return ""
    return " against ".join(" and ".join(side) for side in sides)


def gpu_names(digest: Digest) -> str:
    """Name the GPUs of a capture, each kind once."""
    return " + ".join(sorted(set(digest.gpus))) or "unknown"


# Another part ------------------------------------------------------------------------------------


def other_parts(digests: Sequence[Digest], command: str) -> NotApplicable | None:
    """Refuse captures of which different parts were summed up: their steps are not the same."""
    first = digests[0]
    other = next((one for one in digests if one.scope != first.scope), None)
    if other is None:
        return None
    told = " and ".join(f"{one.label} {_part(one)}" for one in (first, other))
    reason = f"the captures are not of the same part: {told}"
    return NotApplicable(command, reason, _how_to_agree(first.scope, other.scope))


def _part(digest: Digest) -> str:
    return f"was summed up {f'with {digest.scope}' if digest.scope else 'as a whole'}"


def _how_to_agree(before: str, after: str) -> str:
    """Say what to type; what stands before is a baseline, if anything is."""
    if before:
        instead = f" instead of {after}" if after else ""
        return f"add {before}{instead}, or save the baseline anew"
    save = f"gpusight baseline save CAPTURE… {after}"
    return f"leave {after} out, or give it to the baseline too: {save}"
