"""What people write, as a request."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusight.errors import UsageError
from gpusight.recording.parse_request import kernel_regex, make_request
from gpusight.recording.programs import options_of
from tests.recording.planned_programs import (
    PYTHON,
)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the fake tools are POSIX scripts"),
    pytest.mark.usefixtures("empty_folder"),
]


@pytest.mark.parametrize(
    ("pattern", "regex", "hits", "misses"),
    [
        ("gemm", "[gG][eE][mM][mM]", "void x<sGEMM_128>(int)", "conv"),
        ("*gemm*", "[gG][eE][mM][mM]", "sgemm_nn", "conv"),
        ("ampere_*", "^[aA][mM][pP][eE][rR][eE]_.*$", "ampere_sgemm", "my_ampere_"),
        ("*_nt", "^.*_[nN][tT]$", "gemm_nt", "gemm_nt_2"),
        ("a?c", "^[aA].[cC]$", "abc", "abcd"),
        ("f(int)", r"[fF]\([iI][nN][tT]\)", "f(int)", "f[int]"),
        ("/^a|b$/", "^a|b$", "cb", "ba"),
        ("regex:^a", "^a", "ab", "ba"),
    ],
)
def test_kernel_patterns(pattern: str, regex: str, hits: str, misses: str) -> None:
    assert kernel_regex(pattern) == regex
    assert re.search(regex, hits)
    assert not re.search(regex, misses)


def test_words_of_a_program() -> None:
    assert make_request([Path("a b"), "x"]).program == ("a b", "x")
    with pytest.raises(UsageError, match="No closing quotation"):
        make_request("python 'train.py")


def test_kernel_patterns_that_are_none() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        kernel_regex("/(/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range": ""}, "--range has no name"),
        ({"range": "  "}, "--range has no name"),
        ({"tool_options": ["bogus"]}, "--tool-option=bogus is not an option"),
        ({"tool_options": ["--trace=cuda", "bogus"]}, "--tool-option=bogus is not an option"),
        ({"tool_options": ["--"]}, "--tool-option=-- is not an option"),
        ({"steps": "9" * 30}, "number that is too large"),
    ],
)
def test_what_a_tool_would_misread_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_request([PYTHON, "t.py"], **options)
    assert make_request("ls", tool_options=["--set", "full"]).extra == ("--set", "full")


@pytest.mark.parametrize(
    "options",
    [
        {"steps": "3:", "memory": True, "rank": "0,2"},
        {"range": "a b@c", "stop": True, "gpu_metrics": True, "rank": "1"},
        {"delay_s": 1.5, "duration_s": 2.0, "graph_nodes": True, "python_stacks": True},
        {"tool_options": ["--trace=cuda,nvtx", "-x y"], "overwrite": True},
        {"tool": "ncu", "kernel": "*gemm*", "launch_skip": 3, "launch_count": 2, "level": "full"},
    ],
)
def test_a_request_can_be_written_as_options(options: dict[str, Any]) -> None:
    from gpusight.cli.commands.record import _request
    from gpusight.cli.main import build_parser

    request = make_request([PYTHON, "train.py"], **options)
    tool_given = [f"--with={request.tool.value}"] if request.tool else []
    words = ["record", *tool_given, *options_of(request), "--", *request.program]
    assert _request(build_parser().parse_args(words)) == request
