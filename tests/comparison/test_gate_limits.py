"""Limits as people write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpusight.api import DEFAULT_GATE_LIMIT
from gpusight.comparison.gate_limits import (
    CONFIG_FILE_NAME,
    GateConfig,
    GateLimit,
    LimitKind,
    find_config,
    join_limits,
    limit_of,
    load_config,
    read_limit,
    read_limits,
)
from gpusight.errors import UsageError
from gpusight.results import Fmt


@pytest.mark.parametrize(
    ("text", "metric", "kind", "value", "measures"),
    [
        ("step_time=+3%", "step_time", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
        ("step_time=-5%", "step_time", LimitKind.RELATIVE, -0.05, Fmt.SHARE),
        ("step_time=−5%", "step_time", LimitKind.RELATIVE, -0.05, Fmt.SHARE),
        (" idle/input = + 1 ms ", "idle/input", LimitKind.ABSOLUTE, 1e6, Fmt.TIME),
        ("idle=+200us", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+200µs", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+200μs", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+.5S", "idle", LimitKind.ABSOLUTE, 5e8, Fmt.TIME),
        ("idle=+7ns", "idle", LimitKind.ABSOLUTE, 7, Fmt.TIME),
        ("step_time=50ms", "step_time", LimitKind.CEILING, 5e7, Fmt.TIME),
        ("memory_peak=+5MB", "memory_peak", LimitKind.ABSOLUTE, 5e6, Fmt.BYTES),
        ("memory_peak=+2GiB", "memory_peak", LimitKind.ABSOLUTE, 2 * 2**30, Fmt.BYTES),
        ("memory_peak=70gb", "memory_peak", LimitKind.CEILING, 7e10, Fmt.BYTES),
        ("memory_peak=-1kB", "memory_peak", LimitKind.ABSOLUTE, -1e3, Fmt.BYTES),
        ("h2d_bytes=+1KiB", "h2d_bytes", LimitKind.ABSOLUTE, 1024, Fmt.BYTES),
        ("launches=+10", "launches", LimitKind.ABSOLUTE, 10, Fmt.COUNT),
        ("findings=0", "findings", LimitKind.CEILING, 0, Fmt.COUNT),
        ("kernel:f<a=1>*=+3%", "kernel:f<a=1>*", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
        ("range:my step=+3%", "range:my step", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
    ],
)
def test_what_is_written_is_what_is_meant(
    text: str, metric: str, kind: LimitKind, value: float, measures: Fmt
) -> None:
    limit = read_limit(text)
    assert (limit.metric, limit.kind, limit.measures) == (metric, kind, measures)
    assert limit.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "step_time",
        "=+3%",
        "step_time=",
        "step_time=+",
        "step_time=+%",
        "step_time=fast",
        "step_time=+3 furlongs",
        "step_time=++3%",
        "step_time=nan",
        "step_time=+inf%",
        "step_time=+1,5ms",
        "step_time=+1ms/s",
        "step_time=+" + "9" * 400,
        "step_time=+٣%x",
    ],
)
def test_what_is_no_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a limit") as caught:
        read_limit(text)
    assert "METRIC=+3%" in caught.value.hint
    assert len(str(caught.value)) < 250


def test_nothing_falls_by_more_than_all_of_it() -> None:
    assert read_limit("step_time=-100%").value == -1
    for text in ("step_time=-100.1%", "step_time=-200%"):
        with pytest.raises(UsageError, match="no metric falls by over 100%"):
            read_limit(text)


def test_python_may_give_texts_or_a_mapping() -> None:
    meant = [read_limit("step_time=+3%"), read_limit("launches=+10")]
    assert read_limits(["step_time=+3%", "launches=+10"]) == meant
    assert read_limits({"step_time": "+3%", "launches": "+10"}) == meant
    assert read_limits("step_time=+3%") == meant[:1]
    wrong: Any
    for wrong in (5, [5], {"findings": True}, {5: "+3%"}, None):
        with pytest.raises(UsageError, match="a limit is a string, not"):
            read_limits(wrong)
    assert read_limits({"findings": 0}) == [read_limit("findings=0")]
    with pytest.raises(UsageError, match="write step_time=3ms"):
        read_limits({"step_time": 3})[0].check_unit(Fmt.TIME)


def test_a_percentage_says_which_way() -> None:
    with pytest.raises(UsageError, match="has no sign; write step_time=\\+3%"):
        read_limit("step_time=3%")


@pytest.mark.parametrize(
    ("text", "most"),
    [("x=+3%", 103), ("x=-5%", 95), ("x=+7", 107), ("x=-7", 93), ("x=50", 50), ("x=+0%", 100)],
)
def test_the_most_that_is_allowed_of_100(text: str, most: float) -> None:
    assert read_limit(text).most(100.0) == pytest.approx(most)


@pytest.mark.parametrize(
    ("text", "improvement"), [("x=-5%", True), ("x=-1ms", True), ("x=+0", False), ("x=5", False)]
)
def test_a_negative_limit_asks_for_an_improvement(text: str, improvement: bool) -> None:
    assert read_limit(text).improvement is improvement


@pytest.mark.parametrize(
    ("amount", "fmt"),
    [
        ("+3%", Fmt.TIME),
        ("+3%", Fmt.BYTES),
        ("+3%", Fmt.COUNT),
        ("+3ms", Fmt.TIME),
        ("3MB", Fmt.BYTES),
        ("+3", Fmt.COUNT),
        ("3", Fmt.REAL),
        ("0", Fmt.TIME),
        ("+0", Fmt.BYTES),
    ],
)
def test_units_that_fit(amount: str, fmt: Fmt) -> None:
    limit_of("x", amount).check_unit(fmt)


@pytest.mark.parametrize(
    ("amount", "fmt", "expected"),
    [
        ("+3", Fmt.TIME, "x is a time; write x=+3ms or x=+3%"),
        ("50", Fmt.TIME, "x is a time; write x=50ms"),
        ("+3ms", Fmt.BYTES, "x is a size in bytes; write x=+5MB or x=+3%"),
        ("+3MB", Fmt.COUNT, "x is a count; write x=+10 or x=+3%"),
        ("3ms", Fmt.COUNT, "x is a count; write x=10"),
    ],
)
def test_units_that_do_not_fit(amount: str, fmt: Fmt, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        limit_of("x", amount).check_unit(fmt)
    assert str(caught.value).endswith(expected)


def test_limits_given_stand_for_the_configured_ones_of_their_metric() -> None:
    def limits(*texts: str) -> list[GateLimit]:
        return [read_limit(text) for text in texts]

    configured = limits("a=+1%", "a=5ms", "b=+1%")
    result = join_limits(configured, limits("a=+2%", "c=+1%", "c=+1%"))
    assert [str(limit) for limit in result] == ["b=+1%", "a=+2%", "c=+1%"]


def test_the_default_is_a_limit() -> None:
    assert read_limit(DEFAULT_GATE_LIMIT).metric == "step_time"


# `gpusight.toml`.


FULL = """
[gate]
baseline = ["perf/a.json", "perf/b_*.json"]
confidence = "90%"
least_effect = 0.01
inconclusive = "fail"
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
inconclusive = "fail"
[gate.train.max]
step_time = "+10%"
[gate.infer]
baseline = "infer.json"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / CONFIG_FILE_NAME
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, text: str, gate: str | None = None) -> GateConfig:
    return load_config(written(folder, text), gate)


def test_everything_that_it_can_say(tmp_path: Path) -> None:
    config = loaded(tmp_path, FULL)
    assert config.baseline == (str(tmp_path / "perf/a.json"), str(tmp_path / "perf/b_*.json"))
    assert [str(limit) for limit in config.limits] == [
        "step_time=+3%",
        "idle/input=+1ms",
        "idle/input=5ms",
    ]
    assert config.confidence == pytest.approx(0.9)
    assert config.least_effect == 0.01
    assert (config.inconclusive, config.allow_missing) == ("fail", True)
    assert (config.steps, config.within) == ("3-7", "train")
    assert (config.junit, config.markdown) == (tmp_path / "out/gate.xml", tmp_path / "out/gate.md")


@pytest.mark.parametrize("text", ["", "[gate]\n", "\ufeff[gate]\r\n"])
def test_it_may_say_nothing(tmp_path: Path, text: str) -> None:
    config = loaded(tmp_path, text)
    assert config == GateConfig(path=tmp_path / CONFIG_FILE_NAME)


def test_steps_may_be_a_number(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[gate]\nsteps = 5").steps == "5"


def test_a_gate_with_a_name_starts_from_what_all_share(tmp_path: Path) -> None:
    shared = loaded(tmp_path, NAMED)
    train, infer = (loaded(tmp_path, NAMED, name) for name in ("train", "infer"))
    assert [str(limit) for limit in shared.limits] == ["step_time=+3%", "memory_peak=+5%"]
    assert [str(limit) for limit in train.limits] == ["step_time=+10%", "memory_peak=+5%"]
    assert (shared.inconclusive, train.inconclusive, infer.inconclusive) == (None, "fail", None)
    assert train.baseline == (str(tmp_path / "all.json"),)
    assert infer.baseline == (str(tmp_path / "infer.json"),)
    assert infer.limits == shared.limits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gate", "is not TOML"),
        ("[gate]\ninconclusive = 1", "'inconclusive' has the wrong kind of value; write inconcl"),
        ("[gate]\nstepps = 1", "'stepps' is not a setting of [gate]; did you mean steps?"),
        ("[gates]\nsteps = 1", "'gates' is not a setting of the file; did you mean gate?"),
        ("gate = 3", "'gate' has the wrong kind of value; write a table: [gate]"),
        ("[gate]\nfoo = 1", "'foo' is not a setting of [gate]; known settings: baseline, max"),
        ("[gate.train]\nfoo = 1", "'foo' is not a setting of [gate.train]"),
        ("[gate]\nbaseline = 3", 'baseline = "perf/baseline.json"'),
        ("[gate]\nbaseline = ['']", 'baseline = "perf/baseline.json"'),
        ("[gate]\nmax = ['step_time=+3%']", 'max = { step_time = "+3%" }'),
        ("[gate.max]\nlaunches = true", '"launches" = "+3%"'),
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
        ("[gate.train]\n[gate.infer]\n", "has several gates; choose one with --gate: train, infer"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("x = " + "1" * 5000, "is not TOML"),
        ("#" * 2_000_000, "larger than 1 MB"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, text)
    assert message in str(caught.value)
    assert CONFIG_FILE_NAME in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match="it is not a regular file"):
            load_config(path)


def test_a_gate_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no \[gate.eval\]; it has: train, infer"):
        loaded(tmp_path, NAMED, "eval")
    with pytest.raises(UsageError, match="it has: none with a name"):
        loaded(tmp_path, FULL, "eval")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_config(tmp_path / CONFIG_FILE_NAME)
    (tmp_path / CONFIG_FILE_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        load_config(tmp_path / CONFIG_FILE_NAME)


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
