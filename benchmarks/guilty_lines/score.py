"""Records every program with its stacks, and looks which line `gpusight hotspots` names first.

`python -m benchmarks.guilty_lines.score [--with TOOL] [--half design|held-out] [-o FILE] [NAME …]`
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from benchmarks.guilty_lines import host_work
from benchmarks.guilty_lines.host_work import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable


MARK = "# guilty"
DESIGN, HELD_OUT = "design", "held out"
_STEPS = ("--warmup=3", "--timed=0", "--recorded=20")
_LIMIT_S = 180


def half(name: str) -> str:
    """Say which half a program belongs to: decided by its name, before anybody saw a result."""
    return HELD_OUT if hashlib.sha256(name.encode()).digest()[0] % 2 else DESIGN


def guilty_lines(program: Callable[[], Any]) -> set[int]:
    """Read the lines that take the time from the program's source."""
    lines, first = inspect.getsourcelines(program)
    return {first + index for index, line in enumerate(lines) if line.rstrip().endswith(MARK)}


def record(name: str, folder: Path, tool: str) -> Path:
    """Record a program; returns the capture."""
    record_words = [sys.executable, "-m", "gpusight", "record", f"--with={tool}"]
    program = [sys.executable, "-m", "benchmarks.guilty_lines", name]
    output = folder / name
    words = [*record_words, *_STEPS, f"--output={output}", "--", *program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    captures = [p for p in folder.glob(f"{name}.*") if not p.name.endswith(".stacks")]
    if done.returncode or not captures:
        raise SystemExit(f"{name}: not recorded\n{done.stderr}")
    return captures[0]


def score(program: Callable[[], Any], capture: Path) -> dict[str, Any]:
    """Compare the first line of a capture with the guilty ones."""
    rows = gs.hotspots(capture).to_dict()["rows"]
    file = Path(host_work.__file__).name
    lines = guilty_lines(program)
    ranks = [
        index
        for index, row in enumerate(rows)
        if row["line"] in lines and Path(row["file"]).name == file
    ]
    first = rows[0]
    return {
        "name": program.__name__,
        "half": half(program.__name__),
        "right": ranks[:1] == [0],
        "rank": ranks[0] + 1 if ranks else None,
        "first": f"{Path(first['file']).name}:{first['line']} {first['function']}",
        "samples": sum(row["samples"] for row in rows),
        "share": first["host_ns"] / max(1, sum(row["host_ns"] for row in rows)),
    }


def main() -> None:
    """Record and score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--with", dest="tool", default="torch", choices=("torch", "nsys", "cupti"))
    parser.add_argument("--half", choices=(DESIGN, HELD_OUT))
    parser.add_argument("-o", "--output", type=Path, help="where the results go, as JSON")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS:
            name = program.__name__
            if (args.names and name not in args.names) or args.half not in (None, half(name)):
                continue
            row = score(program, record(name, Path(folder), args.tool))
            rows.append(row)
            word = "right" if row["right"] else f"WRONG, rank {row['rank']}"
            print(
                f"{name:20} {row['half']:9} {word:14} {row['share']:4.0%} {row['first']}",
                flush=True,
            )
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} lines named first")
    if args.output:
        about = {"tool": args.tool, "device": host_work.DEVICE, "python": platform.python_version()}
        args.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
