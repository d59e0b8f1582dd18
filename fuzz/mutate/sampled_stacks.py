"""Edits of a file of sampled stacks: chunks whose check still fits what they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fuzz.mutate.raw import edit_bytes
from fuzz.mutate.tree import edit_tree
from gpusight.recording.inside import stack_sampler as stacks

if TYPE_CHECKING:
    from random import Random

_BINARY = (stacks.NODES, stacks.SAMPLES, stacks.RESET)


def edit_sampled_stacks(rng: Random, data: bytes) -> bytes:
    """Edit, drop, repeat or move chunks; or bytes of the file."""
    if rng.random() < 0.2:
        return edit_bytes(rng, data)
    parts = [list(chunks) for chunks, _ in stacks.processes(data)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        chunks = rng.choice([part for part in parts if part] or [[(stacks.END, b"{}")]])
        at = rng.randrange(len(chunks))
        kind, body = chunks[at]
        action = rng.random()
        if action < 0.7:
            chunks[at] = kind, _edited(rng, kind, body)
        elif action < 0.8:
            del chunks[at]
        elif action < 0.9:
            chunks.insert(rng.randrange(len(chunks) + 1), chunks[at])
        else:
            chunks[at] = rng.choice((*_BINARY, stacks.FRAMES, stacks.CLOCK)), body
    return b"".join(
        stacks.MAGIC + b"".join(stacks.chunk(kind, body) for kind, body in part) for part in parts
    )


def _edited(rng: Random, kind: bytes, body: bytes) -> bytes:
    if kind in _BINARY:
        return edit_bytes(rng, body)
    try:
        return json.dumps(edit_tree(rng, json.loads(body))).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # a kind was given to another's content
        return edit_bytes(rng, body)
