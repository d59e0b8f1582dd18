"""What captures are called, and which names are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpusight.errors import RecordError, UsageError
from gpusight.recording import capture_names
from gpusight.recording.request import Tool


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("python train.py --epochs 3", "train"),
        ("python3.11 -u -X dev src/train.py", "train"),
        ("/opt/env/bin/python -m pkg.mod --x train.py", "pkg.mod"),
        ("python -mpkg.mod", "pkg.mod"),
        ("python -um pkg.mod", "pkg.mod"),
        ("python -c pass", "python"),
        ("python -", "python"),
        ("python", "python"),
        ("torchrun --nproc-per-node 4 --standalone train.py --lr 1", "train"),
        ("torchrun --nproc_per_node=4 -m pkg.train --lr 1", "pkg.train"),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", "train"),
        ("accelerate launch --config_file a.yaml --multi_gpu fine_tune.py", "fine_tune"),
        ("deepspeed --num_gpus 2 ds.py --deepspeed", "ds"),
        ("mpirun -n 4 python train.py", "train"),
        ("mpirun -n 4 ./solver input.cfg", "solver"),
        ("srun -n 4 --gres=gpu:1 python -u train.py", "train"),
        ("env A=1 python train.py", "train"),
        ("numactl -N 0 python3 -m serve", "serve"),
        ("uv run train.py", "train"),
        ("bash run.sh 1", "run"),
        ("bash -c true", "bash"),
        ("./a.out", "a.out"),
        ("build/solver.exe x", "solver"),
        (r"C:\env\python.exe C:\work\my\train.py", "train"),
        (r".\solver.exe", "solver"),
        ("./we~ird", "we_ird"),
        ("./---", "capture"),
    ],
)
def test_default_names(program: str, name: str) -> None:
    assert capture_names.default_name(program.split()) == name


def test_a_default_name_is_never_longer_than_a_file_s_may_be() -> None:
    for letter in ("x", "核"):
        name = capture_names.default_name(["./" + letter * 300])
        assert 90 < len(name.encode()) <= 100
        assert set(name) == {letter}


def test_an_output_whose_name_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        capture_names.output_path("x" * 300, ["python"])


@pytest.mark.parametrize(
    ("given", "tool", "base"),
    [
        ("run", Tool.NSYS, "run"),
        ("run.nsys-rep", Tool.NSYS, "run"),
        ("run.NSYS-REP", Tool.NSYS, "run"),
        ("run.qdrep", Tool.NSYS, "run"),
        ("v1.2", Tool.NSYS, "v1.2"),
        ("a/run.ncu-rep", Tool.NCU, "a/run"),
        ("run.trace.json.gz", Tool.TORCH, "run"),
        ("run.json", Tool.TORCH, "run"),
        ("run.sqlite", Tool.CUPTI, "run"),
    ],
)
def test_suffixes_are_taken_off(given: str, tool: Tool, base: str) -> None:
    assert capture_names.base_of(Path(given), tool) == Path(base)


@pytest.mark.parametrize(
    ("given", "tool", "message"),
    [
        ("run.ncu-rep", Tool.NSYS, "named like a capture of ncu.*--with ncu"),
        ("run.nsys-rep", Tool.TORCH, "named like a capture of nsys.*torch writes .trace.json.gz"),
        (".nsys-rep", Tool.NSYS, "has an extension but no name"),
    ],
)
def test_suffixes_that_do_not_fit(given: str, tool: Tool, message: str) -> None:
    with pytest.raises(UsageError) as error:
        capture_names.base_of(Path(given), tool)
    import re

    assert re.search(message, str(error.value))


def test_the_next_free_number(tmp_path: Path) -> None:
    base = tmp_path / "train"
    assert capture_names.free_base(base, ".nsys-rep") == base
    (tmp_path / "train.nsys-rep").touch()
    (tmp_path / "train-3.nsys-rep").touch()
    assert capture_names.free_base(base, ".nsys-rep") == tmp_path / "train-2"
    assert capture_names.free_base(base, ".ncu-rep") == base
    (tmp_path / "train-2.rank4.pid77.nsys-rep").touch()
    assert capture_names.free_base(base, ".nsys-rep") == tmp_path / "train-4"
    assert capture_names.free_base(base, ".nsys-rep", 0) == base


def test_captures_of_one_name_in_order_of_ranks(tmp_path: Path) -> None:
    for name in ("r.rank10.sqlite", "r.rank2.sqlite", "r.rank2.pid5.sqlite", "r.x.sqlite", "r.sql"):
        (tmp_path / name).touch()
    result = [p.name for p in capture_names.family(tmp_path / "r", ".sqlite")]
    assert result == ["r.rank2.pid5.sqlite", "r.rank2.sqlite", "r.rank10.sqlite"]
    assert [p.name for p in capture_names.family(tmp_path / "r.rank10", ".sqlite")] == [
        "r.rank10.sqlite"
    ]
    assert capture_names.family(tmp_path / "nowhere" / "r", ".sqlite") == []


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").touch()
    capture_names.refuse_taken(tmp_path / "r", ".sqlite", overwrite=True)
    capture_names.refuse_taken(tmp_path / "s", ".sqlite", overwrite=False)
    with pytest.raises(RecordError, match="exists"):
        capture_names.refuse_taken(tmp_path / "r", ".sqlite", overwrite=False)


def test_placeholders() -> None:
    environ = {"SLURM_JOB_ID": "42"}
    assert capture_names.expand("run_%q{SLURM_JOB_ID}_100%%", environ) == "run_42_100%"
    assert capture_names.expand("%h", {}) not in ("", "%h")
    with pytest.raises(UsageError, match="NOPE"):
        capture_names.expand("%q{NOPE}", environ)
    for text in ("%p", "100%", "%q{"):
        with pytest.raises(UsageError, match="unknown placeholder"):
            capture_names.expand(text, environ)


def test_a_slash_means_a_folder(tmp_path: Path) -> None:
    new = f"{tmp_path}/new/"
    assert capture_names.output_path(new, ["python", "t.py"]) == tmp_path / "new" / "t"
    assert capture_names.output_path(str(tmp_path), ["python", "t.py"]) == tmp_path
    assert capture_names.output_path("x", ["python", "t.py"]) == Path("x")


def test_a_folder_that_takes_nothing_is_refused_before_anything_runs(tmp_path: Path) -> None:
    capture_names.prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write to"):
        capture_names.prepare_folder(tmp_path / "file" / "below")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="needs a user who may not write everywhere"
)
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    with pytest.raises(RecordError, match="cannot write to"):
        capture_names.prepare_folder(folder)
