"""The generated trace has to hold together, or what is measured on it means nothing."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate_torch import count_steps, generate
from benchmarks.torch_trace.kernels import KERNELS
from tests.shared import SHARED, needs_shared

Event = dict[str, Any]
STEPS = 2


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch") / "small.json"
    generate(14, path)
    return path


@pytest.fixture(scope="module")
def events(trace: Path) -> list[Event]:
    # Timestamps have 16 digits, one more than a float can be trusted with.
    loaded = json.loads(trace.read_text(), parse_float=Decimal)
    events: list[Event] = loaded["traceEvents"]
    return events


def of(events: list[Event], *categories: str) -> list[Event]:
    return [event for event in events if event.get("cat") in categories]


def steps_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event["name"].startswith("ProfilerStep#")]


def assert_nested(events: list[Event]) -> None:
    """Check that each event lies inside the one it starts in."""
    open_until: list[Decimal] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or end <= open_until[-1], event["name"]
        open_until.append(end)


def test_operators_calls_and_python_functions_nest_on_their_thread(events: list[Event]) -> None:
    kinds = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
    threads = defaultdict(list)
    for event in of(events, *kinds):
        threads[event["tid"]].append(event)
    assert len(threads) == 2
    for thread in threads.values():
        assert_nested(thread)


def test_work_on_a_stream_does_not_overlap(events: list[Event]) -> None:
    streams = defaultdict(list)
    for event in of(events, "kernel", "gpu_memcpy", "gpu_memset"):
        streams[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(streams) == {7, 20}
    for spans in streams.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_work_starts_after_the_one_call_that_launched_it(events: list[Event]) -> None:
    calls = {event["args"]["correlation"]: event for event in of(events, "cuda_runtime")}
    calls |= {event["args"]["correlation"]: event for event in of(events, "cuda_driver")}
    assert len(calls) == len(of(events, "cuda_runtime", "cuda_driver"))
    works = of(events, "kernel", "gpu_memcpy", "gpu_memset")
    assert len({work["args"]["correlation"] for work in works}) == len(works)
    for work in works:
        call = calls[work["args"]["correlation"]]
        assert call["ts"] < work["ts"]
        assert call["args"]["External id"] == work["args"]["External id"]


def test_a_call_happens_inside_the_operator_it_names(events: list[Event]) -> None:
    ops = {event["args"]["External id"]: event for event in of(events, "cpu_op")}
    marks = of(events, "user_annotation")
    assert len(ops) == len(of(events, "cpu_op"))
    assert not {mark["args"]["External id"] for mark in marks} & set(ops)
    for call in of(events, "cuda_runtime", "cuda_driver"):
        op = ops.get(call["args"].get("External id"))
        if op:
            assert op["tid"] == call["tid"]
            assert op["ts"] <= call["ts"]
            assert call["ts"] + call["dur"] <= op["ts"] + op["dur"]


def test_flows_join_launches_to_work_and_forward_to_backward(events: list[Event]) -> None:
    starts: dict[int, Decimal] = {}
    ends: dict[int, Decimal] = {}
    for event in of(events, "fwdbwd"):
        (starts if event["ph"] == "s" else ends)[event["id"]] = event["ts"]
    assert starts.keys() == ends.keys()
    sequences = {
        (event["tid"], event["ts"]): event["args"].get("Sequence number")
        for event in of(events, "cpu_op")
    }
    main, autograd = sorted({tid for tid, _ in sequences})
    for flow, start in starts.items():
        assert start < ends[flow]
        assert sequences[main, start] == sequences[autograd, ends[flow]]
    correlations = {
        event["args"]["correlation"] for event in of(events, "cuda_runtime", "cuda_driver")
    }
    assert {event["id"] for event in of(events, "ac2g")} == correlations


def test_python_functions_lie_inside_their_parents(events: list[Event]) -> None:
    frames = {event["args"]["Python id"]: event for event in of(events, "python_function")}
    roots = [event for event in frames.values() if event["args"]["Python parent id"] is None]
    assert len(roots) == 1
    for frame in frames.values():
        if frame is not roots[0]:
            parent = frames[frame["args"]["Python parent id"]]
            assert parent["ts"] <= frame["ts"]
            assert frame["ts"] + frame["dur"] <= parent["ts"] + parent["dur"]


def test_memory_adds_up_and_each_step_gives_back_what_it_took(events: list[Event]) -> None:
    for device in (0, -1):
        blocks = [
            event["args"]
            for event in sorted(of(events, "cpu_instant_event"), key=lambda event: event["ts"])
            if event["args"]["Device Id"] == device
        ]
        before = blocks[0]["Total Allocated"] - blocks[0]["Bytes"]
        total, live = before, Counter[int]()
        for block in blocks:
            total += block["Bytes"]
            live[block["Addr"]] += block["Bytes"]
            assert block["Total Allocated"] == total
            assert live[block["Addr"]] in (0, block["Bytes"])
        assert total == before
        assert all(
            block["Total Allocated"] <= block["Total Reserved"] or device for block in blocks
        )


def test_events_are_numbered_in_the_order_of_the_file(events: list[Event]) -> None:
    numbers = [event["args"]["Ev Idx"] for event in events if "Ev Idx" in event.get("args", {})]
    assert numbers == list(range(len(numbers)))


def test_steps_do_the_same_at_different_speeds(events: list[Event]) -> None:
    marks = [event for event in steps_of(events) if event["cat"] == "user_annotation"]
    assert [mark["name"] for mark in marks] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert marks[0]["ts"] + marks[0]["dur"] < marks[1]["ts"]
    kernels = of(events, "kernel")
    per_step = len(kernels) // STEPS
    names = Counter(kernel["name"] for kernel in kernels)
    assert len(names) == len(KERNELS)
    assert all(count % STEPS == 0 for count in names.values())
    durations = [kernel["dur"] for kernel in kernels]
    assert durations[:per_step] != durations[per_step:]


def test_the_gpu_annotation_of_a_step_covers_its_kernels(events: list[Event]) -> None:
    marks = {event["args"]["External id"]: event for event in of(events, "user_annotation")}
    for covered in of(events, "gpu_user_annotation"):
        mark = marks[covered["args"]["External id"]]
        assert mark["name"] == covered["name"]
        assert mark["ts"] < covered["ts"]


def test_a_compressed_file_holds_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.json.gz"
    generate(14, packed)
    assert gzip.decompress(packed.read_bytes()) == trace.read_bytes()


def test_the_size_is_met_to_half_a_step(trace: Path) -> None:
    a_step = trace.stat().st_size / STEPS
    assert abs(trace.stat().st_size - 14e6) <= a_step / 2
    assert count_steps(2000) * a_step == pytest.approx(2e9, rel=0.03)


@needs_shared
def test_proportions_are_those_of_a_real_trace(events: list[Event]) -> None:
    with gzip.open(SHARED / "torch" / "gpt_small_train_stack.json.gz") as file:
        real = json.load(file)["traceEvents"]
    wanted = Counter(event.get("cat") for event in real)
    made = Counter(event.get("cat") for event in events)
    for kind in ("cpu_op", "cpu_instant_event", "kernel", "cuda_runtime", "ac2g", "fwdbwd"):
        assert made[kind] / STEPS == pytest.approx(wanted[kind], rel=0.1), kind
    assert made["gpu_memset"] / STEPS == pytest.approx(wanted["gpu_memset"], rel=0.1)
    assert 0.5 < made["python_function"] / STEPS / wanted["python_function"] <= 1


@needs_shared
def test_events_are_laid_out_as_kineto_lays_them_out(trace: Path) -> None:
    with gzip.open(SHARED / "torch" / "gpt_small_train_stack.json.gz", "rt") as file:
        real = shapes(file.read())
    made = {shape for shape in shapes(trace.read_text()) if "Collective" not in shape}
    assert made <= real


def shapes(text: str) -> set[str]:
    """Give the different events of a file, with names, lists and numbers taken out."""
    text = text[text.index('"traceEvents"') :]
    text = re.sub(r'"(name|labels|traceName)": "[^"]*"', r'"\1": ""', text)
    text = re.sub(r'("Input \w+"|"Concrete Inputs"): \[.*?\](?=, ")', r"\1: []", text)
    text = re.sub(r'GB/s\)": [\d.]+', 'GB/s)": 0', text)
    text = re.sub(r"-?\d+(\.\d{6})", r"0.000000", text)
    text = re.sub(r"-?\d+(?=[.,\n\] ])|(?<=\.)\d{3}\b", "0", text)
    return set(re.split(r"(?<=\n  \}),\n", text))
