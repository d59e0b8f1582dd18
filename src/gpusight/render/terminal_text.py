"""Styled lines of text: plain for pipes, files and logs, in color on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from gpusight.render.cell_text import display_width, safe_text, shorten_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


UNKNOWN_WIDTH = 120
"""Width for a pipe or file when the width of the screen is unknown."""
LABEL = 6
"""Columns for words such as `seen` and `fix`."""
INDENT = " " * (3 + LABEL + 2)
_NARROW_ASCII = {
    **dict.fromkeys("µμ", "u"),
    **dict.fromkeys("·─−–—", "-"),
    **dict.fromkeys("→›▸", ">"),
    **dict.fromkeys("█▉▊▋▌▍▎▏", "#"),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("‘’", "'"),
    "…": "~",
    "×": "x",
    "¹": "1",
    "²": "2",
    "³": "3",
    "±": "~",
}
"""ASCII letters in place of others, each as wide as what it replaces."""
_COLUMN_ASCII = str.maketrans(_NARROW_ASCII)
_PROSE_ASCII = str.maketrans({**_NARROW_ASCII, "…": "...", "→": "->", "—": "--", "±": "+-"})


@dataclass(frozen=True, slots=True)
class StyledLine:
    """One line, and its style in color."""

    text: str
    style: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    """Parts of the line with styles of their own, in place of `text`, where colors are shown."""

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[str, str]]) -> StyledLine:
        """Join parts of a line, each with its style."""
        parts = tuple(parts)
        return cls("".join(text for text, _ in parts), parts=parts)

    def colored_parts(self) -> tuple[tuple[str, str], ...]:
        """Give the texts of the line with their styles."""
        return self.parts or ((self.text, self.style),)


def plain_lines(lines: Iterable[StyledLine]) -> str:
    """Write lines without colors."""
    return "".join(f"{line.text.rstrip()}\n" for line in lines)


def draw_lines(lines: Iterable[StyledLine], stream: TextIO) -> None:
    """Write lines with colors to a terminal."""
    from rich.console import Console
    from rich.text import Text

    # Lines already fit; Rich must neither wrap them nor read markup in names.
    console = Console(
        file=stream,
        width=1_000_000,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    for line in lines:
        text = Text.assemble(*line.colored_parts())
        text.rstrip()
        console.print(text)


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|[kMGTP]?B|[MGTP]?FLOP)\b)")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def wrapped_lines(text: str, width: int | None, lead: str, style: str = "") -> Iterator[StyledLine]:
    """Wrap a text behind a lead, neither before a unit nor at the hyphens of rules."""
    safe = safe_text(text)
    if width is None or display_width(lead + safe) <= width:
        yield StyledLine(lead + safe, style)
        return
    indent = " " * min(display_width(lead), width // 2)
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_NO_BREAK, safe),
        width,
        initial_indent=lead,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    yield from (StyledLine(line.replace(_NO_BREAK, " "), style) for line in lines or [lead])


_CLAUSE_END = re.compile(r"(?<! with)[.;:](?= (?!--))")
"""Not before what to type: `capture again with: gpusight record …`, `analyze a part: --steps 3`."""


def _commas(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r",(?= )", text)]


def note_lines(notes: Sequence[str], width: int | None, max_lines: int) -> list[StyledLine]:
    """Give the first note, and how many more there are.

    Of a note that is too long, whole sentences or clauses are shown.
    """
    if not notes:
        return []
    count = len(notes) - 1
    more = f" (+{count} more: --details)" if count else ""
    lines = list(wrapped_lines(f"{notes[0]}{more}", width, "note: ", "yellow"))
    ends = [end.start() for end in _CLAUSE_END.finditer(notes[0])]
    if ends and " " not in notes[0][: ends[0]]:  # a label alone has no content: `estimate`
        label = ends.pop(0)
        commas = [at for at in _commas(notes[0]) if at > label and not (ends and at > ends[0])]
        ends = commas + ends
    while len(lines) > max_lines and ends:
        notes_left = f", +{count} note{'s' if count > 1 else ''}" if count else ""
        text = f"{notes[0][: ends.pop()]} (more{notes_left}: --details)"
        lines = list(wrapped_lines(text, width, "note: ", "yellow"))
    if len(lines) > max_lines:
        return [StyledLine(f"notes: {len(notes)} (--details)", "yellow")]
    return lines


def labeled_lines(
    label: str, text: str, width: int | None, style: str = "", *, lead: str = ""
) -> Iterator[StyledLine]:
    """Wrap a text behind a label."""
    yield from wrapped_lines(text, width, f"   {label.ljust(LABEL)}  {lead}", style)


_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def command_lines(command: str, width: int | None, lead: str = "") -> list[str]:
    """Break a command that is too wide between words with backslashes, so that it can be pasted.

    A word that is too wide itself stays where it is.
    """
    command = safe_text(command)
    words = _SHELL_WORD.findall(command)
    if width is None or " ".join(words) != command:  # quotes that do not close
        return [lead + command]
    indent, room = (lead if lead.isspace() else "") + "  ", width - len(" \\")
    lines = [lead + words[0]]
    for word in words[1:]:
        whole = f"{lines[-1]} {word}"
        if display_width(whole) > room >= display_width(indent + word):
            lines[-1] += " \\"
            lines.append(indent + word)
        else:
            lines[-1] = whole
    return lines


_COMMENT = re.compile(r"(\s*)(\S.*?)\s+((?:#|//) .*)")
_COMMANDS = ("gpusight ", "ncu ", "nsys ")


def code_lines(code: str, width: int | None) -> Iterator[StyledLine]:
    """Show lines to paste, whole: names of the capture in them are made safe, not cut.

    Where they are too wide, comments move above their line, and calls are broken at commas.
    """
    lines = [safe_text(line) for line in code.rstrip("\n").splitlines()]
    indent = INDENT
    if width is not None:
        room = width - len(INDENT)
        lines = [part for line in lines for part in _narrow_code(line, room)]
        widest = max(map(display_width, lines), default=0)
        indent = " " * max(0, min(len(INDENT), width - widest))
    yield from (StyledLine(indent + line, "green") for line in lines)


def _narrow_code(line: str, width: int, *, continued: bool = False) -> Iterator[str]:
    """Break a line of Python, C++ or a shell so that it means the same."""
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    if display_width(line) <= width:
        yield line
    elif text.startswith(("# ", "// ")):
        lead = f"{indent}{text.partition(' ')[0]} "
        yield from textwrap.wrap(
            text.partition(" ")[2],
            max(width, len(lead) + 1),
            initial_indent=lead,
            subsequent_indent=lead,
            break_long_words=False,
            break_on_hyphens=False,
        )
    elif (match := _COMMENT.fullmatch(line)) and _is_outside_quotes(match[2]):
        yield from _narrow_code(indent + match[3], width)
        yield from _narrow_code(indent + match[2], width, continued=continued)
    elif text.startswith(_COMMANDS):
        yield from command_lines(text, width, indent)
    else:
        hang = indent if continued else f"{indent}    "
        ends = [
            end
            for end in (match.end() for match in re.finditer(r"\((?!\))|, ", line))
            if _is_outside_quotes(line[:end])
            and (continued or line.count("(", 0, end) > line.count(")", 0, end))
        ]
        if not ends:
            yield line
            return
        # Where the rest then fits, else as late as possible.
        fitting = [end for end in ends if display_width(line[:end].rstrip()) <= width] or ends[:1]
        rests = (end for end in fitting if display_width(hang + line[end:].lstrip()) <= width)
        end = next(rests, fitting[-1])
        yield line[:end].rstrip()
        yield from _narrow_code(hang + line[end:].lstrip(), width, continued=True)


def _is_outside_quotes(text: str) -> bool:
    return text.count('"') % 2 == 0 and text.count("'") % 2 == 0


def cut_line(text: str, width: int | None) -> str:
    """Cut the end off a line that is too wide."""
    return text if width is None else shorten_end(text, width)


def wants_color(stream: TextIO) -> bool:
    """Return whether colors may be written to a stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return False
    return can_encode("─▏…µ", stream)


def can_encode(text: str, stream: TextIO) -> bool:
    """Return whether the stream's encoding has every letter of a text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def ascii_text(text: str) -> str:
    """Write a text for a stream that is not UTF-8: `1.2 us` for `1.2 µs`, `...` for `…`.

    Lines with columns, and those that `...` would make wider than the screen, keep their width.
    """
    lines = text.split("\n")
    return "\n".join(line if line.isascii() else _ascii_line(line) for line in lines)


def _ascii_line(line: str) -> str:
    prose = line.translate(_PROSE_ASCII)
    keeps_width = "  " in line.strip() or len(prose) > max(len(line), screen_width())
    return line.translate(_COLUMN_ASCII) if keeps_width else prose


def screen_width() -> int:
    """Return the reader's screen width: `COLUMNS`, else that of any terminal at hand."""
    if os.environ.get("COLUMNS", "").isdigit():
        return max(20, int(os.environ["COLUMNS"]))
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        if stream is not None and not stream.closed and stream.isatty():
            if stream is sys.__stdout__:
                return shutil.get_terminal_size().columns
            try:
                return os.get_terminal_size(stream.fileno()).columns or UNKNOWN_WIDTH
            except OSError:
                return UNKNOWN_WIDTH
    return UNKNOWN_WIDTH
