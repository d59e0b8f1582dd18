"""Lines to paste: code and commands fit the screen and mean the same."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap

import pytest

from gpusight.render.cell_text import display_width
from gpusight.render.terminal_text import INDENT, code_lines, command_lines, wrapped_lines
from gpusight.rules.registry import kernel_rules, timeline_rules

RULES = {**timeline_rules(), **kernel_rules()}


def parsed(code: str) -> str | None:
    """Return what Python reads; None for C++ and shells."""
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


@pytest.mark.parametrize("rule", RULES)
def test_the_code_of_a_rule_fits_80_columns_and_stays_the_same_program(rule: str) -> None:
    code = RULES[rule].code
    shown = [line.text for line in code_lines(code, 80)]
    assert max(map(display_width, shown), default=0) <= 80
    for width in (40, 60, 80, 100):
        narrow = "\n".join(line.text for line in code_lines(code, width))
        assert parsed(code) is None or parsed(textwrap.dedent(narrow)) == parsed(code)
    assert [line.text for line in code_lines(code, None)] == [
        INDENT + line for line in code.rstrip("\n").splitlines()
    ]


def test_comments_move_above_their_line_and_calls_break_where_the_rest_fits() -> None:
    code = 'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs and fusion\n'
    assert [line.text.removeprefix(INDENT) for line in code_lines(code, 52)] == [
        "# CUDA graphs and fusion",
        "model = torch.compile(",
        '    model, mode="reduce-overhead")',
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80])
@pytest.mark.parametrize("lead", ["next: ", "      "])
def test_a_broken_command_is_the_same_command(width: int, lead: str) -> None:
    command = "gpusight diagnose 'a capture with spaces.sqlite' --steps 2-9 --pace 12ms --details"
    lines = command_lines(command, width, lead)
    pasted = "\n".join(lines).removeprefix(lead).replace("\\\n", " ")
    assert shlex.split(pasted) == shlex.split(command)
    assert all(line.endswith(" \\") for line in lines[:-1])
    # At 20 columns the name of the capture has no room, and stays where it is.
    assert max(map(len, lines)) <= (width if width > 20 else 49)


def test_a_command_with_an_open_quote_is_left_alone() -> None:
    assert command_lines("echo it's", 6) == ["echo it's"]


@pytest.mark.parametrize("width", range(12, 40))
def test_a_number_is_not_wrapped_away_from_its_unit(width: int) -> None:
    text = "1 launch took 131 µs, 2.5 GB and 11.2 ms of it; 3 steps"
    lines = [line.text for line in wrapped_lines(text, width, "")]
    assert " ".join(lines) == text
    assert not any(re.match(r"(?:µs|GB|ms)\b", line) for line in lines)
