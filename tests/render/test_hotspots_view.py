"""Stacks for other tools, read back by what is written down of their formats."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.render.hotspots_view import to_folded, to_pprof, to_speedscope
from tests.analysis.hotspots.stack_traces import MS, loader_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.analysis.hotspots.flame_graph import FlameGraph


@pytest.fixture
def graph() -> FlameGraph:
    return flame_graph(gs.hotspots(loader_trace(), by="line").answer)


def test_folded_lines_sum_to_the_total(graph: FlameGraph) -> None:
    lines = to_folded(graph).splitlines()
    stack = (
        "main (/home/ada/train.py:90);collate (/home/ada/train.py:88);"
        "decode (/usr/lib/python3.11/json/decoder.py:355)"
    )
    assert f"{stack} {6 * 12 * MS}" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == graph.total


def test_speedscope(graph: FlameGraph) -> None:
    document = json.loads(to_speedscope(graph, "run"))
    [profile] = document["profiles"]
    frames = document["shared"]["frames"]
    stacks = [[frames[at]["name"] for at in stack] for stack in profile["samples"]]
    assert ["main (train.py:90)", "collate (train.py:88)", "decode (decoder.py:355)"] in stacks
    assert sum(profile["weights"]) == profile["endValue"] == graph.total
    assert profile["unit"] == "nanoseconds"
    assert {"name": "collate (train.py:88)", "file": "/home/ada/train.py", "line": 88} in frames


def messages(data: bytes) -> list[tuple[int, Any]]:
    """Split a protobuf message into its fields: numbers, and bytes."""
    fields: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        length = varint()
        if tag & 7 == 0:
            fields.append((tag >> 3, length))
        else:
            fields.append((tag >> 3, data[at : at + length]))
            at += length
    return fields


def packed(data: bytes) -> list[int]:
    """Read numbers one after the other."""
    return [value for _, value in messages(b"".join(b"\x08" + part for part in split(data)))]


def split(data: bytes) -> list[bytes]:
    parts, first = [], 0
    for at, byte in enumerate(data):
        if byte < 128:
            parts.append(data[first : at + 1])
            first = at + 1
    return parts


def test_pprof(graph: FlameGraph) -> None:
    raw = to_pprof(graph)
    assert to_pprof(graph) == raw
    fields = messages(gzip.decompress(raw))
    strings = [str(value, "utf-8") for number, value in fields if number == 6]
    assert strings[0] == ""
    functions: dict[int, Any] = {}
    locations: dict[int, Any] = {}
    for number, value in fields:
        if number in (4, 5):
            entry = dict(messages(value))
            (functions if number == 5 else locations)[entry[1]] = entry
    stacks: dict[Any, int] = {}
    for number, value in fields:
        if number == 2:
            sample = dict(messages(value))
            lines = [dict(messages(locations[at][4])) for at in packed(sample[1])]
            names = tuple((strings[functions[at[1]][2]], at[2]) for at in lines)
            [stacks[names]] = packed(sample[2])
    collate = (
        ("decode (decoder.py:355)", 355),
        ("collate (train.py:88)", 88),
        ("main (train.py:90)", 90),
    )
    assert stacks[collate] == 6 * 12 * MS
    assert sum(stacks.values()) == graph.total
    unit = dict(messages(next(value for number, value in fields if number == 1)))
    assert (strings[unit[1]], strings[unit[2]]) == ("GPU idle time", "nanoseconds")


def test_endings_choose_the_format(tmp_path: Path) -> None:
    result = gs.hotspots(loader_trace())
    for ending, begins in {
        "folded": b"main",
        "speedscope.json": b'{"$schema"',
        "pb.gz": b"\x1f\x8b",
        "svg": b"<svg",
        "html": b"<!DOCTYPE",
        "json": b"{",
    }.items():
        assert result.save(tmp_path / f"x.{ending}").read_bytes().startswith(begins)
