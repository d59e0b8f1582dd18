"""Sampled stacks are on the clock of their capture, and only of their capture."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpusight.readers.stacks import sampled_stacks
from gpusight.readers.stacks.sampled_stacks import StackedSource
from gpusight.readers.tables import FrameSource, as_table
from gpusight.recording.inside import stack_sampler as stacks
from gpusight.recording.inside.stack_sampler import chunk, json_chunk
from gpusight.trace.trace import Meta, Trace

EPOCH_NS = 1_800_000_000_000_000_000
MS = 1_000_000
FRAMES = [
    ["/home/me/train.py", "main", "__main__", 3],
    [
        "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "Linear.forward",
        "torch.x",
        9,
    ],
    ["/opt/x/gpusight/inside/y.py", "hook", "gpusight.y", 1],
]
BOOTSTRAP = ("BaseProcess._bootstrap", "multiprocessing.process")
NODES = [stacks.NO_PARENT, 0, 0, 1, 1, 2]
"""main; main > forward; main > forward > hook."""
CLOCK = {"kind": "wall", "before": 1_000 * MS, "value": EPOCH_NS + 50 * MS, "after": 1_000 * MS}


def rows(base_ns: int, *samples: tuple[int, int, int, int]) -> bytes:
    packed = b"".join(stacks.SAMPLE.pack(*sample) for sample in samples)
    return chunk(stacks.SAMPLES, struct.pack("<q", base_ns) + packed)


def process(
    pid: int = 7, session: str = "s", clocks: tuple[dict[str, Any], ...] = (CLOCK,)
) -> bytes:
    about = {"version": 1, "session": session, "pid": pid, "hz": 200.0}
    return b"".join(
        (
            stacks.MAGIC,
            json_chunk(stacks.PROCESS, about),
            *(json_chunk(stacks.CLOCK, clock) for clock in clocks),
            json_chunk(stacks.THREAD, {"number": 0, "native": 7}),
            json_chunk(stacks.THREAD, {"number": 1, "native": 99}),
        )
    )


def table() -> bytes:
    nodes = struct.pack(f"<{len(NODES)}I", *NODES)
    return json_chunk(stacks.FRAMES, FRAMES) + chunk(stacks.NODES, nodes)


SAMPLES = rows(1_000 * MS, (5 * MS, 0, 0, 0), (10 * MS, 0, 0, 2), (130 * MS, 90_000, 0, 1))
WHOLE = process() + table() + SAMPLES


def opened(
    tmp_path: Path, data: bytes, session: str | None = "s", mark: str | None = None
) -> Trace:
    path = tmp_path / "x.stacks"
    path.write_bytes(data)
    meta = Meta(
        path="x",
        source="test",
        tool="test",
        start_utc_ns=EPOCH_NS,
        duration_ns=1_000 * MS,
        session=session,
    )
    frames = {
        "processes": pl.DataFrame({"process": [1], "pid": [7]}),
        "threads": pl.DataFrame({"thread": [70], "process": [1], "tid": [7]}),
    }
    if mark is not None:
        frames["ranges"] = pl.DataFrame(
            {"name": [mark], "start_ns": [80 * MS], "end_ns": [80 * MS]}
        )
    tables = {name: as_table(name, frame) for name, frame in frames.items()}
    return Trace(StackedSource(FrameSource.of(meta, tables), path))


def test_samples_are_on_the_clock_of_the_capture(tmp_path: Path) -> None:
    trace = opened(tmp_path, WHOLE)
    trace.validate()
    samples = trace.stack_samples
    assert samples["time_ns"].to_list() == [55 * MS, 60 * MS, 180 * MS]
    assert samples["process"].to_list() == [1, 1, 1]
    assert samples["thread"].to_list() == [70, 70, 70]
    assert samples["late_ns"].to_list() == [0, 0, 90 * MS]
    # Up to one and a half periods, or since it was due and the same before.
    assert samples["weight_ns"].to_list() == [int(7.5 * MS), 5 * MS, int(97.5 * MS)]
    assert samples["source"].cast(str).to_list() == ["gpusight"] * 3
    frames = trace.stack_frames.filter(pl.col("stack") == samples["stack"][1])
    assert frames["function"].cast(str).to_list() == ["hook", "Linear.forward", "main"]
    assert frames["is_library"].to_list() == [True, True, False]
    assert frames["file"].cast(str).to_list() == [
        "inside/y.py",
        "torch/nn/modules/linear.py",
        "~/train.py",
    ]
    assert "3 sampled stacks, 1 of them over 5 ms late" in trace.meta.notes[0]
    assert "within 100.0 µs" in trace.meta.notes[0]


def test_a_mark_in_the_capture_is_more_exact_than_the_wall_clock(tmp_path: Path) -> None:
    clock = {"kind": "mark", "before": 1_000 * MS, "value": None, "after": 1_000 * MS + 4_000}
    text = stacks.CLOCK_MESSAGE + '{"session":"s","pid":7,"time":1000000000}'
    trace = opened(tmp_path, process(clocks=(clock, CLOCK)) + table() + SAMPLES, None, text)
    assert trace.stack_samples["time_ns"][0] == 85 * MS - 2_000
    assert "within 2.000 µs" in trace.meta.notes[0]


def test_the_clock_of_the_capture_itself_comes_first_and_drift_is_followed(tmp_path: Path) -> None:
    clocks = tuple(
        {"kind": "capture", "before": at * MS, "value": value * MS, "after": at * MS}
        for at, value in ((1_000, 10), (1_100, 111))
    )
    trace = opened(tmp_path, process(clocks=(*clocks, CLOCK)) + table() + SAMPLES)
    assert trace.stack_samples["time_ns"][1] == 20 * MS + MS // 10


@pytest.mark.parametrize(
    ("data", "session", "why"),
    [
        (WHOLE, "other", "of another run"),
        (process(pid=8) + table() + SAMPLES, None, "of other processes"),
        (
            process(clocks=({**CLOCK, "value": EPOCH_NS + 10**13},)) + table() + SAMPLES,
            None,
            "at another time",
        ),
        (process(pid=8) + table() + SAMPLES, "s", "none of the threads"),
        (process() + SAMPLES, "s", "frames that are not there"),
        (
            process()
            + json_chunk(stacks.FRAMES, FRAMES)
            + chunk(stacks.NODES, struct.pack("<6I", 1, 0, 2, 0, 2, 0))
            + SAMPLES,
            "s",
            "calls itself",
        ),
        (process().replace(b'"version":1', b'"version":1'), "s", "none of the threads"),
        (stacks.MAGIC + json_chunk(stacks.PROCESS, {"version": 2}), "s", "missing required"),
        (stacks.MAGIC + chunk(stacks.PROCESS, b"[" * 100_000), "s", "left out"),
        (stacks.MAGIC, "s", "left out"),
        (process() + chunk(stacks.SAMPLES, bytes(9)), "s", "cut off"),
    ],
)
def test_what_does_not_belong_or_makes_no_sense_is_left_out(
    data: bytes, session: str | None, why: str, tmp_path: Path
) -> None:
    trace = opened(tmp_path, data, session)
    assert not trace.has("stack_samples")
    assert trace.stack_samples.is_empty()
    trace.validate()
    assert why in trace.meta.notes[0]


def test_a_file_that_is_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    trace = opened(tmp_path, WHOLE + SAMPLES[:-5])
    assert trace.stack_samples.height == 3
    assert "damaged" in trace.meta.notes[1]


def test_numbers_begin_again_after_a_reset(tmp_path: Path) -> None:
    again = chunk(stacks.RESET, b"") + json_chunk(stacks.FRAMES, [FRAMES[1]])
    again += chunk(stacks.NODES, struct.pack("<2I", stacks.CUT_OFF, 0))
    trace = opened(tmp_path, WHOLE + again + rows(1_200 * MS, (0, 0, 0, 0)))
    last = trace.stack_samples["stack"][-1]
    names = trace.stack_frames.filter(pl.col("stack") == last)["function"].cast(str).to_list()
    assert names == ["Linear.forward"]
    trace.validate()


def test_threads_of_other_programs_are_counted(tmp_path: Path) -> None:
    trace = opened(tmp_path, WHOLE + rows(1_100 * MS, (0, 0, 1, 0)))
    assert trace.stack_samples.height == 3
    assert "1 sampled stacks are of threads" in trace.meta.notes[1]


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_are_read_or_left_out(seed: int, tmp_path: Path) -> None:
    """Edits inside chunks get a right checksum, so that they reach the tables."""
    rng = random.Random(seed)
    edited = [stacks.MAGIC]
    for kind, body in next(iter(stacks.processes(WHOLE)))[0]:
        content = bytearray(body)
        for _ in range(rng.randrange(3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        edited.append(chunk(rng.choice((kind, kind, kind, b"Z")), bytes(content)))
    data = b"".join(edited)
    trace = opened(tmp_path, data if seed % 4 else data[: rng.randrange(len(data))])
    trace.validate()


def test_a_hostile_file_takes_no_more_than_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_stacks, "_MAX_FRAMES", 10)
    monkeypatch.setattr(sampled_stacks, "_MAX_PROCESSES", 3)
    monkeypatch.setattr(stacks, "MAX_CHUNKS", 30)
    for number, (data, why) in enumerate(
        {
            process() + table() * 4: "more than 10 frames",
            process() * 4: "more processes",
            (process() + chunk(stacks.END, b"{}") * 20) * 2: "more processes or chunks",
        }.items()
    ):
        (tmp_path / str(number)).mkdir()
        trace = opened(tmp_path / str(number), data)
        assert not trace.has("stack_samples")
        assert why in trace.meta.notes[0]
    (tmp_path / "one").mkdir()
    trace = opened(tmp_path / "one", WHOLE + chunk(stacks.END, b"{}") * 40)
    assert trace.stack_samples.height == 3
    assert "is damaged" in trace.meta.notes[-1]


def test_workers_of_a_loader_that_the_capture_lacks_are_added(tmp_path: Path) -> None:
    """A forked worker inherits frames of the program, which do not run in it."""
    about = {"version": 1, "session": "s", "pid": 8, "parent": 7, "hz": 200.0}
    frames = [
        ["/home/me/train.py", "main", "__main__", 3],
        ["/usr/lib/python3.11/multiprocessing/process.py", *BOOTSTRAP, 314],
        ["/home/me/data.py", "load", "data", 5],
    ]
    nodes = struct.pack("<6I", stacks.NO_PARENT, 0, 0, 1, 1, 2)
    worker = b"".join(
        (
            stacks.MAGIC,
            json_chunk(stacks.PROCESS, about),
            json_chunk(stacks.THREAD, {"number": 0, "native": 8}),
            json_chunk(stacks.FRAMES, frames),
            chunk(stacks.NODES, nodes),
            rows(1_000 * MS, (7 * MS, 0, 0, 2)),
        )
    )
    other = worker.replace(
        json_chunk(stacks.PROCESS, about), json_chunk(stacks.PROCESS, {**about, "parent": 1})
    )
    for data, left_out in ((WHOLE + worker, 0), (WHOLE + other, 1)):
        trace = opened(tmp_path, data)
        trace.validate()
        of_worker = trace.stack_samples.filter(process=2)
        assert of_worker.height == 1 - left_out
        notes = " ".join(trace.meta.notes)
        assert ("of threads that the capture does not have" in notes) == bool(left_out)
        if left_out:
            assert trace.processes["pid"].to_list() == [7]
            continue
        # On the clock of the process that started it.
        assert of_worker.select("time_ns", "thread").row(0) == (57 * MS, 71)
        assert trace.processes.select("process", "pid").rows() == [(1, 7), (2, 8)]
        assert trace.threads.select("thread", "process", "tid").rows() == [(70, 1, 7), (71, 2, 8)]
        assert trace.row_count("threads") == 2
        own = trace.stack_frames.filter(pl.col("stack") == of_worker["stack"][0])
        assert own["function"].cast(str).to_list() == ["load", "BaseProcess._bootstrap"]
