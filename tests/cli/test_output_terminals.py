"""Text output on narrow terminals, in locales without UTF-8, and the first screen of `diagnose`."""

from __future__ import annotations

import io
import re
import runpy
import sys
from pathlib import Path

import pytest

from gpusight.cli import output
from gpusight.cli.main import main
from gpusight.recording.doctor import checkup
from gpusight.render.cell_text import display_width
from gpusight.render.terminal_text import INDENT, ascii_text, can_encode
from tests.cli.captures import NAMED, SOURCE
from tests.recording.doctor.machines import bare
from tests.shared import DATA, REPOSITORY

NARROW = 60
CAPTURES = (
    SOURCE / "data" / "demo.sqlite",
    SOURCE / "data" / "demo.json.gz",
    SOURCE / "data" / "demo.ncu-repz",
    DATA / "resnet18_infer.sqlite",
    DATA / "jax_small.xplane.pb",
    DATA / "memory_snapshot.pickle",
    DATA / "gpt_small_forward_key_averages.txt",
)
COMMANDS = (
    *("diagnose", "explain", "summary", "kernels", "ops", "launches", "ranges", "api", "copies"),
    *("memory", "flops", "steps", "ledger", "utilization", "timeline", "counters", "roofline"),
    *("occupancy", "info", "questions", "drill", "diagnose --details", "share --check"),
    *("whatif --graph", "sql --tables", "compare CAPTURE"),
)
STAND_INS = re.compile(r"\\[ux][0-9a-f]{2,4}")


def is_pasted(line: str) -> bool:
    """Return whether a line is a command or code to paste, which is never cut."""
    commands = ("next: ", "  DEMO=", "  gpusight ")
    kernels = ("  --kernel-name 'regex:^", "'^")
    return line.startswith((*commands, *kernels, INDENT))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_nothing_is_wider_than_the_terminal(
    capture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(capture.parent)  # paths in commands are then short
    monkeypatch.setenv("COLUMNS", str(NARROW))
    too_wide = {}
    for command in COMMANDS:
        name, *options = command.replace("CAPTURE", capture.name).split()
        assert main([name, capture.name, *options]) in {0, 2}
        lines = capsys.readouterr().out.splitlines()
        wide = [line for line in lines if display_width(line) > NARROW and not is_pasted(line)]
        if wide:
            too_wide[command] = wide
    assert too_wide == {}


@pytest.mark.parametrize("command", ["cache", "doctor", "completion bash", "record --dry-run ls"])
def test_commands_without_a_capture_fit_too(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(NARROW))
    monkeypatch.setattr(checkup, "Machine", bare)  # this one starts several programs
    assert main(command.split()) == 0
    if command in {"cache", "doctor"}:
        lines = capsys.readouterr().out.splitlines()
        assert [x for x in lines if display_width(x) > NARROW and not is_pasted(x)] == []


class AsciiStream(io.TextIOWrapper):
    """Standard output of a locale without UTF-8."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", newline="\n")

    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode("ascii")


@pytest.mark.parametrize("capture", CAPTURES[:3], ids=lambda path: path.name)
def test_locales_without_utf8_get_ascii_of_the_same_width(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(capture.parent)
    monkeypatch.setenv("COLUMNS", str(NARROW))
    for command in ("diagnose", "explain", "summary", "kernels", "ranges", "ledger", "steps"):
        stream = AsciiStream()
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([command, capture.name]) in {0, 2}
        lines = stream.text().splitlines()
        assert not [line for line in lines if STAND_INS.search(line)], command
        assert not [x for x in lines if len(x) > NARROW and not is_pasted(x)], command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1.2 µs", "1.2 us"),
        ("compute 80% · idle 20%", "compute 80% - idle 20%"),
        ("46.9 → 9.96 ms/step", "46.9 -> 9.96 ms/step"),
        ("… and 3 more rows", "... and 3 more rows"),
        ("void gemm…kernel   12.0 µs  3", "void gemm~kernel   12.0 us  3"),
        ("share  ███▌", "share  ####"),
        ("4 × 8", "4 x 8"),
    ],
)
def test_letters_and_their_ascii(text: str, shown: str) -> None:
    assert ascii_text(text) == shown


def test_a_line_that_fills_the_screen_keeps_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert ascii_text("a line of 20 column…") == "a line of 20 column~"


def test_streams_without_an_encoding_take_any_letter() -> None:
    stream = io.StringIO()
    output.write_to(stream, "1.2 µs")
    assert stream.getvalue() == "1.2 µs"
    assert not can_encode("µ", AsciiStream())
    assert can_encode("µ", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))


SCRIPT = runpy.run_path(str(REPOSITORY / "scripts" / "count-diagnose-lines"))


def test_the_first_screen_of_captures_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # as the script sets it
    # Those of tests/data are counted where their sums are checked.
    assert SCRIPT["main"]([str(path) for path in CAPTURES]) == 0
    heading, *rows, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["lines", "columns", "exit", "capture"]
    assert len(rows) == 5  # the last two cannot be diagnosed
    assert all(int(row.split()[0]) <= 15 and int(row.split()[1]) <= 100 for row in rows)
    assert last == f"{len(rows)} captures, 0 with more than 15 lines"


def test_the_script_fails_on_a_screen_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(SCRIPT["main"].__globals__, "MAX_LINES", 3)
    assert SCRIPT["main"]([str(NAMED["demo"])]) == 1
    assert "more than 3 lines" in capsys.readouterr().out


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_errors_are_wrapped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(NARROW))
    path = "/".join(["a-long-folder"] * 6)
    line = f"gpusight roofline: cannot read {path}; see what the capture has: gpusight info FILE"
    output.write_error(line)
    assert capsys.readouterr().err == f"{line}\n"
    monkeypatch.setattr(sys, "stderr", Terminal())
    output.write_error(line)
    assert isinstance(sys.stderr, Terminal)
    lines = sys.stderr.getvalue().splitlines()
    assert " ".join(text.strip() for text in lines) == line
    assert [text for text in lines if len(text) > NARROW] == [f"  {path};"]  # to copy
