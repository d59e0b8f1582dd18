"""Sampled stacks next to a capture are next to its copy, without what they reveal."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.recording.inside import stack_sampler as stacks
from gpusight.recording.inside.stack_sampler import chunk, json_chunk
from gpusight.trace.trace import Trace

DATA = Path(__file__).parents[1] / "data"
MS = 1_000_000
USER = "alicexyz"
FRAMES = [
    [f"/home/{USER}/acme_secret/train.py", "main", "__main__", 3],
    [f"/home/{USER}/acme_secret/loader.py", "AcmeLoader.__next__", "acme_secret.loader", 40],
    ["/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", "Linear.forward",
     "torch.nn.modules.linear", 9],
    [f"/home/{USER}/env/lib/python3.11/site-packages/acmelib/x.py", "go", "acmelib.x", 7],
]  # fmt: skip
NODES = [stacks.NO_PARENT, 0, 0, 1, 0, 2, 0, 3]
COLUMNS = ["time_ns", "stack", "weight_ns", "late_ns"]


def write_stacks(capture: Path, session: str, clock: dict[str, Any], trace: Trace) -> None:
    """Sample the thread that launches most, every 2 ms."""
    thread, process = trace.api_calls.group_by("thread", "process").len().sort("len").row(-1)[:2]
    tid = trace.threads.filter(pl.col("thread") == thread)["tid"][0]
    pid = trace.processes.filter(pl.col("process") == process)["pid"][0]
    first_ns, last_ns = trace.kernels["start_ns"].min(), trace.kernels["end_ns"].max()
    assert isinstance(first_ns, int)
    assert isinstance(last_ns, int)
    times = range(max(0, first_ns), last_ns, 2 * MS)
    base_ns = 5_000 * MS
    rows = b"".join(
        stacks.SAMPLE.pack(time - times[0], 20 * (k % 5), k % 3 % 2, k % 4)
        for k, time in enumerate(times)
    )
    head = {
        "version": 1, "session": session, "pid": pid, "hz": 500.0, "folder": f"/home/{USER}/acme",
        "libraries": [f"/home/{USER}/env"], "python": "3.11.7",
    }  # fmt: skip
    at = {"before": base_ns - 3_000, "after": base_ns + 3_000}
    capture.with_name(capture.name + ".stacks").write_bytes(
        stacks.MAGIC
        + json_chunk(stacks.PROCESS, head)
        + json_chunk(stacks.CLOCK, {**clock, **at, "value": clock["value"] + times[0]})
        + json_chunk(stacks.THREAD, {"number": 0, "native": tid, "name": f"of {USER}"})
        + json_chunk(stacks.THREAD, {"number": 1, "native": 3_999_999, "name": "another"})
        + json_chunk(stacks.FRAMES, FRAMES)
        + chunk(stacks.NODES, struct.pack(f"<{len(NODES)}I", *NODES))
        + json_chunk(stacks.RATE, {"time": base_ns + 40 * MS, "hz": 250.0})
        + chunk(stacks.SAMPLES, struct.pack("<q", base_ns) + rows)
    )


@pytest.fixture(params=["nsys", "torch"])
def sampled(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A capture with stacks next to it."""
    if request.param == "nsys":
        capture = tmp_path / "run.sqlite"
        shutil.copy(DATA / "gpt_tiny_osrt.sqlite", capture)
        with gs.open(DATA / "gpt_tiny_osrt.sqlite") as trace:
            clock = {"kind": "wall", "value": trace.meta.start_utc_ns or 0}
            write_stacks(capture, "a1b2", clock, trace)
    else:
        capture = tmp_path / "run.json.gz"
        document = json.loads(gzip.decompress((DATA / "healthy.json.gz").read_bytes()))
        document["gpusight_stacks"] = {"session": "a1b2", "pid": 1, "time": 2}
        capture.write_bytes(gzip.compress(json.dumps(document).encode()))
        with gs.open(DATA / "healthy.json.gz") as trace:
            write_stacks(capture, "a1b2", {"kind": "capture", "value": 0}, trace)
    return capture


def samples_of(path: Path) -> pl.DataFrame:
    with gs.open(path, cache=False) as trace:
        assert trace.has("stack_samples"), trace.meta.notes
        return trace.stack_samples.select(COLUMNS)


@pytest.mark.parametrize("hashed", [False, True])
def test_a_copy_has_the_same_stacks_without_folders(sampled: Path, hashed: bool) -> None:
    copy = sampled.with_name("copy" + "".join(sampled.suffixes))
    done = gs.share(sampled, copy, hash_names=hashed)
    data = copy.with_name(copy.name + ".stacks").read_bytes()
    for secret in (USER, "acmelib/", "3999999", "a1b2", "/home", "conda", "another", "3.11"):
        assert secret.encode() not in data, secret
    assert (b"acme" in data) is not hashed
    assert any("copy.json.gz.stacks" in n or "copy.sqlite.stacks" in n for n in done.notes)
    assert not done.remains
    own, shared = samples_of(sampled), samples_of(copy)
    assert own.height >= 3
    assert own.equals(shared)
    rows, copied = (gs.hotspots(path, by="line").rows() for path in (sampled, copy))
    numbers = ("line", "idle_ns", "gpu_ns", "host_ns", "samples")
    assert [[r[k] for k in numbers] for r in rows] == [[r[k] for k in numbers] for r in copied]
    if not hashed:
        assert {row["function"] for row in copied} == {row["function"] for row in rows}
        assert {"~/train.py", "~/loader.py"} & {row["file"] for row in copied}


def test_what_stacks_reveal_is_listed(sampled: Path) -> None:
    leaks = gs.share_check(sampled).leaks
    where = {leak.where: (leak.category.value, leak.count) for leak in leaks}
    assert where["sampled stacks"] == ("names of Python functions", 4)
    assert where["sampled stacks: files"] == ("file paths", 4)


def test_stacks_of_another_run_are_not_copied(sampled: Path) -> None:
    path = sampled.with_name(sampled.name + ".stacks")
    data = path.read_bytes()
    for damaged in (data[:-40], stacks.MAGIC + b"x" * 50, b"no stacks", b""):
        path.write_bytes(damaged)
        copy = sampled.with_name(f"copy{len(damaged)}" + "".join(sampled.suffixes))
        done = gs.share(sampled, copy)
        assert not copy.with_name(copy.name + ".stacks").exists()
        assert any("were not copied" in note for note in done.notes)
        assert copy.exists()


def test_nothing_is_overwritten(sampled: Path) -> None:
    copy = sampled.with_name("copy" + "".join(sampled.suffixes))
    copy.with_name(copy.name + ".stacks").write_text("mine")
    with pytest.raises(gs.GpusightError, match="exists already"):
        gs.share(sampled, copy)


def test_stacks_of_workers_that_the_capture_lacks_are_left_out_and_counted(sampled: Path) -> None:
    path = sampled.with_name(sampled.name + ".stacks")
    head = {"version": 1, "session": "a1b2", "pid": 987_654, "parent": 1, "hz": 200.0}
    worker = (
        stacks.MAGIC
        + json_chunk(stacks.PROCESS, head)
        + json_chunk(stacks.THREAD, {"number": 0, "native": 987_654})
        + json_chunk(stacks.FRAMES, FRAMES)
        + chunk(stacks.NODES, struct.pack(f"<{len(NODES)}I", *NODES))
        + chunk(stacks.SAMPLES, struct.pack("<q", 0) + stacks.SAMPLE.pack(5, 0, 0, 1))
    )
    path.write_bytes(path.read_bytes() + worker)
    copy = sampled.with_name("copy" + "".join(sampled.suffixes))
    done = gs.share(sampled, copy)
    assert any(note.startswith("1 sampled stacks of processes that") for note in done.notes)
    assert b"987654" not in copy.with_name(copy.name + ".stacks").read_bytes()
