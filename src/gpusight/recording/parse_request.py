"""Makes a request of the words and numbers that people write, in a shell or in Python."""

from __future__ import annotations

import enum
import os
import re
import shlex
from typing import TYPE_CHECKING, TypeVar

from gpusight.errors import UsageError
from gpusight.recording.capture_names import output_path
from gpusight.recording.inside.stack_sampler import DEFAULT_HZ, LAUNCHING, THREADS
from gpusight.recording.request import NcuLevel, Ranks, RecordedSteps, RecordRequest, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence


AUTO = "auto"
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")


def make_request(
    program: Sequence[str | os.PathLike[str]] | str,
    *,
    tool: str | None = None,
    output: str | os.PathLike[str] | None = None,
    range: str | None = None,  # noqa: A002 - read as gs.record(range=…)
    steps: str | int | None = None,
    delay_s: float | None = None,
    duration_s: float | None = None,
    whole: bool = False,
    warmup: int | None = None,
    timed: int | None = None,
    recorded: int | None = None,
    pace: bool = False,
    memory: bool = False,
    gpu_metrics: bool = False,
    shapes: bool = False,
    python_stacks: bool = False,
    graph_nodes: bool = False,
    stacks: float | None = None,
    stacks_threads: str = LAUNCHING,
    rank: str | int = "all",
    stop: bool = False,
    overwrite: bool = False,
    kernel: str | None = None,
    launch_skip: int | None = None,
    launch_count: int | None = None,
    level: str = "quick",
    tool_options: Sequence[str] = (),
) -> RecordRequest:
    """Make a request of words and numbers; a program given as one text is split like a shell's."""
    words = split_command(program)
    if not words:
        return RecordRequest(words)  # which refuses it
    if range is not None and not range.strip():
        raise UsageError("--range has no name", hint="gpusight record --range forward -- …")
    _refuse_words(tool_options)
    return RecordRequest(
        words,
        tool=None if tool in (None, AUTO) else enum_value(Tool, tool, "tool"),
        output=None if output is None else output_path(str(output), words),
        range_name=range,
        steps=None if steps is None else RecordedSteps.read(str(steps)),
        delay_s=delay_s,
        duration_s=duration_s,
        whole=whole,
        warmup=warmup,
        timed=timed,
        recorded=recorded,
        pace=pace,
        memory=memory,
        gpu_metrics=gpu_metrics,
        shapes=shapes,
        python_stacks=python_stacks,
        graph_nodes=graph_nodes,
        stacks_hz=float(DEFAULT_HZ) if stacks is True else stacks,
        stacks_threads=_threads(stacks_threads),
        ranks=Ranks.read(str(rank)),
        stop=stop,
        overwrite=overwrite,
        kernel=None if kernel is None else kernel_regex(kernel),
        launch_skip=launch_skip,
        launch_count=launch_count,
        level=enum_value(NcuLevel, level, "level"),
        extra=tuple(tool_options),
    )


def _threads(text: str) -> str:
    if text not in THREADS:
        raise UsageError(f"no threads {text!r}", hint=f"there is {', '.join(THREADS)}")
    return text


def _refuse_words(tool_options: Sequence[str]) -> None:
    """Refuse what a tool would take for something else, such as the program to run."""
    previous = ""
    for option in tool_options:
        takes_value = previous.startswith("-") and "=" not in previous
        if option.strip("-") == "" or not (option.startswith("-") or takes_value):
            raise UsageError(
                f"--tool-option={option} is not an option",
                hint="example: --tool-option=--trace=cuda",
            )
        previous = option


def split_command(program: Sequence[str | os.PathLike[str]] | str) -> tuple[str, ...]:
    """Return the words of a command line; one text is split like a shell's."""
    if not isinstance(program, str):
        return tuple(os.fspath(word) for word in program)
    try:
        return tuple(shlex.split(program))
    except ValueError as error:
        raise UsageError(
            f"{program!r} is not a command line", why=str(error), hint="pass a list of strings"
        ) from error


def kernel_regex(pattern: str) -> str:
    """Write a pattern for kernel names, as every command takes them, as a regular expression.

    One that every dialect reads: which one Nsight Compute has is not documented. Only regular
    expressions are case-sensitive; a glob must match from the beginning to the end.
    """
    if pattern.startswith("regex:"):
        return _check_regex(pattern.removeprefix("regex:"))
    if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
        return _check_regex(pattern[1:-1])
    if not set(pattern) & set("*?"):
        return "".join(map(_either_case, pattern))
    wild = {"*": ".*", "?": "."}
    regex = "".join(wild.get(letter) or _either_case(letter) for letter in pattern)
    is_part = pattern.startswith("*") and pattern.endswith("*") and len(pattern) > 2
    return regex[2:-2] if is_part else f"^{regex}$"


def _check_regex(regex: str) -> str:
    try:
        re.compile(regex)
    except re.error as error:
        raise UsageError(f"{regex!r} is not a regular expression", why=str(error)) from error
    return regex


def _either_case(letter: str) -> str:
    if letter.isascii() and letter.isalpha():
        return f"[{letter.lower()}{letter.upper()}]"
    return literal(letter)


def literal(text: str) -> str:
    r"""Write a regular expression that matches this text and no other.

    Only letters that mean something everywhere get a backslash: in some dialects one makes
    something special of others, `\<` the beginning of a word, `\'` the end of the text.
    """
    return _SPECIAL.sub(r"\\\1", text)


_Choice = TypeVar("_Choice", bound=enum.Enum)


def enum_value(kinds: type[_Choice], text: str, what: str) -> _Choice:
    """Find what a word names; raises with the words that there are."""
    known = {str(kind.value): kind for kind in kinds}
    if text not in known:
        raise UsageError(f"no {what} {text!r}", hint=f"there is {', '.join(known)}")
    return known[text]
