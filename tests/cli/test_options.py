"""Options that several commands have mean the same in each, and what the analyses take."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.cli import options
from gpusight.cli.main import build_parser, main
from tests.cli.captures import NAMED
from tests.shared import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KERNEL_COMMANDS = {
    "counters", "diagnose", "drill", "launches", "occupancy", "record", "roofline",
}  # fmt: skip
PATTERN = (
    ": a glob such as '*gemm*', any part of the name, or a regular expression written "
    "/…/ or regex:…"
)


def declared(
    parser: argparse.ArgumentParser, command: str = ""
) -> Iterator[tuple[str, argparse.Action]]:
    """Give the options of every command and action, each with the name of its command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from declared(inner, f"{command} {verb}".strip())
        else:
            yield command, action


def commands_with(option: str) -> dict[str, argparse.Action]:
    """Give an option as each command declares it."""
    everything = declared(build_parser())
    return {name: action for name, action in everything if option in action.option_strings}


def known(place: str) -> Any:
    """Give a constant by the name of its module and its own."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def test_a_kernel_is_chosen_in_the_same_way_everywhere() -> None:
    result = commands_with("--kernel")
    assert set(result) == KERNEL_COMMANDS
    assert {action.metavar for action in result.values()} == {"GLOB"}
    assert all(str(action.help).endswith(PATTERN) for action in result.values())


@pytest.mark.parametrize("pattern", ["*GEMM*", "gemm", "/gemm/", "regex:.*gemm.*"])
@pytest.mark.parametrize("command", ["launches", "occupancy"])
def test_every_way_to_name_a_kernel_finds_it(
    command: str, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(NAMED["forward"]), "--kernel", pattern]) == 0
    assert "gemm" in capsys.readouterr().out


def test_launches_are_chosen_in_the_same_way_everywhere() -> None:
    assert set(commands_with("--launch")) == {"counters", "diagnose"}
    for command in commands_with("--launch"):
        for given in (["--launch", "0", "1"], ["--launch", "0", "--launch", "1"]):
            assert build_parser().parse_args([command, "x", *given]).launch == [0, 1]
        assert build_parser().parse_args([command, "x"]).launch == []


CHOICES = {
    ("orion build", "--model-type"): "gpusight.analysis.orion.orion_rows:MODEL_TYPES",
    ("orion build", "--columns"): "gpusight.analysis.orion.orion_build:COLUMNS",
    ("orion build", "--durations"): "gpusight.analysis.orion.orion_build:DURATIONS",
    ("orion build", "--helpers"): "gpusight.analysis.orion.orion_build:HELPERS",
    ("occupancy", "--over"): "gpusight.render.charts.kernel_charts:_SECTIONS",
    ("flops", "--by"): "gpusight.analysis.flops.flops_tables:BY",
    ("ops", "--by"): "gpusight.analysis.operator_summary:BY",
    ("export", "--to"): "gpusight.render.table_export:FORMATS",
}
"""Commands repeat these, as their help must import nothing heavy."""


@pytest.mark.parametrize(("command", "option"), list(CHOICES))
def test_choices_are_those_of_the_analysis(command: str, option: str) -> None:
    action = commands_with(option)[command]
    choices = tuple(known(CHOICES[command, option]))
    assert action.choices is not None
    assert tuple(action.choices) == choices
    assert action.default is None or action.default == choices[0]


def test_what_orion_plot_draws_is_what_its_series_hold() -> None:
    choices = commands_with("--metric")["orion plot"].choices or ()
    assert tuple(f"{name}_share" for name in choices) == known(
        "gpusight.analysis.orion.orion_utilization:SERIES"
    )


def test_every_form_of_counters_has_its_option() -> None:
    forms = set(known("gpusight.analysis.counters.counter_tables:FORMS"))
    assert set(known("gpusight.cli.commands.counters:_FORMS")) == forms - {"tidy"}
    assert all("counters" in commands_with(f"--{form}") for form in forms - {"tidy"})


def test_defaults_of_orion_build_are_those_of_python() -> None:
    given = ["orion", "build", "--ncu", "x", "--model-type", "vision", "-o", "y"]
    args, made = (
        build_parser().parse_args(given),
        known("gpusight.analysis.orion.orion_build:OrionOptions")(),
    )
    names = ("columns", "compat", "threshold", "durations", "helpers")
    assert {name: getattr(args, name) for name in names} == {n: getattr(made, n) for n in names}


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (options.number, "0", 0),
        (options.number, "12", 12),
        (options.count, "1", 1),
        (options.positive, "0.5", 0.5),
        (options.positive, "1e3", 1000.0),
    ],
)
def test_numbers(parse: Any, text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (options.number, "-1", "'-1' is not a whole number from 0"),
        (options.number, "1.5", "'1.5' is not a whole number from 0"),
        (options.number, "9" * 5000, "is not a whole number from 0"),
        (options.number, str(2**63), "is not a whole number from 0"),
        (options.count, "0", "'0' is not a whole number from 1"),
        (options.positive, "0", "'0' is not a number above 0"),
        (options.positive, "nan", "'nan' is not a number above 0"),
        (options.positive, "inf", "'inf' is not a number above 0"),
        (options.positive, "much", "'much' is not a number above 0"),
    ],
)
def test_what_is_no_number_is_refused(parse: Any, text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        parse(text)


NO_KERNELS = str(NAMED["graph"])
TOTALS = str(DATA / "gpt_small_train_key_averages.txt")
NO_MEMORY = str(DATA / "gpt_tiny_osrt.sqlite")
UNDRAWN = {
    "ledger": ["ledger", TOTALS],
    "memory": ["memory", NO_MEMORY],
    "timeline": ["timeline", TOTALS],
    "utilization": ["utilization", TOTALS],
    "occupancy": ["occupancy", NO_KERNELS],
    "roofline": ["roofline", NO_KERNELS],
    "orion plot": ["orion", "plot", "--ncu", NO_KERNELS, "--nsys", NO_KERNELS],
    "diagnose": ["diagnose", TOTALS],
    "compare": ["compare", TOTALS, TOTALS],
    "ranks": ["ranks", TOTALS],
    "hotspots": ["hotspots", TOTALS],
}


def test_every_command_that_draws_is_tried() -> None:
    drawing = {name for name, a in commands_with("--format").items() if "html" in (a.choices or ())}
    assert drawing == set(UNDRAWN)


@pytest.mark.parametrize("command", sorted(UNDRAWN))
def test_where_there_is_nothing_to_draw_no_picture_is_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "picture.html"
    assert main([*UNDRAWN[command], "-o", str(target)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not target.exists()
