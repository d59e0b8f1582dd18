"""Tables of a PyTorch trace: collectives that the CPU runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gpusight as gs

if TYPE_CHECKING:
    from pathlib import Path


def annotation(name: str, dims: Any, types: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 2}
    return {**event, "ts": 10, "dur": 5, "args": {"Input Dims": dims, "Input type": types}}


def test_ranges_of_gloo_are_collectives_with_their_bytes(tmp_path: Path) -> None:
    events = [
        annotation("gloo:all_reduce", [[1024, 2]], ["float"]),
        annotation("gloo:broadcast", [[3]], ["long int"]),
        annotation("gloo:all_gather", [[3], []], ["c10::BFloat16", ""]),
        annotation("gloo:barrier", [], []),
        annotation("gloo:reduce", 7, "float"),
        annotation("forward", [[3]], ["float"]),
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with gs.open(file, cache=False) as trace:
        trace.validate()
        table = trace.collectives.select("name", "side", "library", "in_elements", "in_bytes")
        assert trace.row_count("ranges") == len(events)
    assert table.rows() == [
        ("all_reduce", "host", "gloo", 2048, 8192),
        ("broadcast", "host", "gloo", 3, 24),
        ("all_gather", "host", "gloo", 3, 6),
        ("barrier", "host", "gloo", None, None),
        ("reduce", "host", "gloo", None, None),
    ]


def test_the_sequence_number_of_a_collective_is_read(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7}
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": 12, "stream": 7}
    file = tmp_path / "trace.json"
    file.write_text(
        json.dumps(
            {"schemaVersion": 1, "traceEvents": [{**event, "ts": 1, "dur": 2, "args": args}]}
        )
    )
    with gs.open(file, cache=False) as trace:
        assert trace.collectives.select("name", "sequence").rows() == [("allreduce", 12)]
