"""Errors on the command line: one line, an exit code, and a traceback only for who asks."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis import kernel_summary
from gpusight.cli.commands import COMMANDS
from gpusight.cli.main import build_parser, main


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("at row 3\nof 5"), pl.exceptions.PanicException("at row 3")]
)
def test_a_bug_is_one_line_with_a_code_of_its_own(
    train: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(kernel_summary, "kernels", broken)
    monkeypatch.setenv("GPUSIGHT_DEBUG", "")
    assert main(["kernels", train]) == 70
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert f"internal error: {type(error).__name__}: at row 3; this is a bug" in found.err
    monkeypatch.setenv("GPUSIGHT_DEBUG", "1")
    assert main(["kernels", train]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_too_little_memory_is_no_bug(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kernel_summary, "kernels", broken)
    assert main(["kernels", train]) == 2
    assert "not enough memory; end other programs" in capsys.readouterr().err


def test_every_command_takes_debug() -> None:
    parser = build_parser()
    chosen = next(action for action in parser._actions if action.dest == "command")
    assert isinstance(chosen.choices, dict)
    for name in COMMANDS:
        assert "--debug" in chosen.choices[name].format_help(), name


def test_debug_counts_before_the_name_of_an_action() -> None:
    parser = build_parser()
    for words in (["cache", "--debug"], ["baseline", "--debug", "show", "x"]):
        assert parser.parse_args(words).debug
    assert "debug" not in parser.parse_args(["baseline", "show", "x"])
