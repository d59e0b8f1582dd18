"""`gpusight.toml`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusight.comparison.gate_limits import NAME, GateConfig, find_config, load_config
from gpusight.errors import UsageError

FULL = """
[gate]
baseline = ["perf/a.json", "perf/b_*.json"]
confidence = "90%"
least_effect = 0.01
strict = true
allow_missing = true
steps = "3-7"
in = "train"
junit = "out/gate.xml"
markdown = "out/gate.md"

[gate.max]
step_time = "+3%"
"idle/input" = ["+1ms", "5ms"]
"""
NAMED = """
[gate]
baseline = "all.json"
[gate.max]
step_time = "+3%"
memory_peak = "+5%"
[gate.train]
strict = true
[gate.train.max]
step_time = "+10%"
[gate.infer]
baseline = "infer.json"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / NAME
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, text: str, gate: str | None = None) -> GateConfig:
    return load_config(written(folder, text), gate)


def test_everything_that_it_can_say(tmp_path: Path) -> None:
    found = loaded(tmp_path, FULL)
    assert found.baseline == (str(tmp_path / "perf/a.json"), str(tmp_path / "perf/b_*.json"))
    assert [str(limit) for limit in found.limits] == [
        "step_time=+3%",
        "idle/input=+1ms",
        "idle/input=5ms",
    ]
    assert found.confidence == pytest.approx(0.9)
    assert found.least_effect == 0.01
    assert (found.strict, found.allow_missing) == (True, True)
    assert (found.steps, found.within) == ("3-7", "train")
    assert (found.junit, found.markdown) == (tmp_path / "out/gate.xml", tmp_path / "out/gate.md")


@pytest.mark.parametrize("text", ["", "[gate]\n", "\ufeff[gate]\r\n"])
def test_it_may_say_nothing(tmp_path: Path, text: str) -> None:
    found = loaded(tmp_path, text)
    assert found == GateConfig(path=tmp_path / NAME)


def test_steps_may_be_a_number(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[gate]\nsteps = 5").steps == "5"


def test_a_gate_with_a_name_starts_from_what_all_share(tmp_path: Path) -> None:
    shared = loaded(tmp_path, NAMED)
    train, infer = (loaded(tmp_path, NAMED, name) for name in ("train", "infer"))
    assert [str(limit) for limit in shared.limits] == ["step_time=+3%", "memory_peak=+5%"]
    assert [str(limit) for limit in train.limits] == ["step_time=+10%", "memory_peak=+5%"]
    assert (shared.strict, train.strict, infer.strict) == (False, True, False)
    assert train.baseline == (str(tmp_path / "all.json"),)
    assert infer.baseline == (str(tmp_path / "infer.json"),)
    assert infer.limits == shared.limits


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[gate", "is not TOML"),
        ("[gate]\nstrict = 1", "'strict' has the wrong kind of value; write strict = true"),
        ("[gate]\nstrickt = true", "'strickt' is not a setting of [gate]; did you mean strict?"),
        ("[gates]\nstrict = true", "'gates' is not a setting of the file; did you mean gate?"),
        ("gate = 3", "'gate' has the wrong kind of value; write a table: [gate]"),
        ("[gate]\nfoo = 1", "'foo' is not a setting of [gate]; it takes baseline, max"),
        ("[gate.train]\nfoo = 1", "'foo' is not a setting of [gate.train]"),
        ("[gate]\nbaseline = 3", 'baseline = "perf/baseline.json"'),
        ("[gate]\nbaseline = ['']", 'baseline = "perf/baseline.json"'),
        ("[gate]\nmax = ['step_time=+3%']", 'max = { step_time = "+3%" }'),
        ("[gate.max]\nlaunches = +10", '"launches" = "+3%"'),
        ("[gate.max]\nlaunches = 'ten'", "'launches=ten' is not a limit"),
        ("[gate.max]\nstep_time = []", 'wrong kind of value; write a limit: "step_time" = "+3%"'),
        ("[gate]\nconfidence = 95", 'confidence = "95%"'),
        ("[gate]\nconfidence = '20%'", 'confidence = "95%"'),
        ("[gate]\nconfidence = nan", 'confidence = "95%"'),
        ("[gate]\nleast_effect = '100%'", 'least_effect = "2%"'),
        ("[gate]\nleast_effect = true", 'least_effect = "2%"'),
        ("[gate]\nsteps = true", 'steps = "3-7"'),
        ("[gate]\nin = ['a']", 'in = "train_step"'),
        ("[gate]\njunit = 1", 'junit = "gate.xml"'),
        ("[gate.train]\n[gate.infer]\n", "holds several gates; choose one by --gate: train, infer"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("x = " + "1" * 5000, "is not TOML"),
        ("#" * 2_000_000, "larger than 1 MB"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, text)
    assert told in str(caught.value)
    assert NAME in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match="it is not a regular file"):
            load_config(path)


def test_a_gate_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no \[gate.eval\]; it holds: train, infer"):
        loaded(tmp_path, NAMED, "eval")
    with pytest.raises(UsageError, match="it holds: none with a name"):
        loaded(tmp_path, FULL, "eval")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_config(tmp_path / NAME)
    (tmp_path / NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        load_config(tmp_path / NAME)


def test_it_is_looked_for_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "repo" / "src"
    inner.mkdir(parents=True)
    above = written(tmp_path / "outer", "")
    assert find_config(inner) is None
    (inner.parent / ".git").mkdir()
    assert find_config(inner) is None
    root = written(inner.parent, "")
    assert find_config(inner) == root
    own = written(inner, "")
    assert find_config(inner) == own
    assert find_config(tmp_path / "outer") == above
