"""Runs a query of an agent in a process of its own, which can be ended: SQL may run away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpusight.errors import GpusightError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 30.0
_MIN_MEMORY = 4 << 30
_MAX_CAUSE_CHARS = 200
_HINT = "aggregate, filter with WHERE, or join on equal columns"


def run_query(
    path: Path, sql: str, first: int, rows: int, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return `columns`, `height` of the whole answer, and `rows` of it from the first as lists."""
    from gpusight.analysis.sql_query import check_query

    check_query(sql)
    request = json.dumps({"path": str(path), "sql": sql, "first": first, "rows": rows})
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-m", __name__],
            input=request.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"the query took over {timeout_s:g} s", hint=_HINT) from None
    with suppress(ValueError):
        answer: dict[str, Any] = json.loads(done.stdout)
        if "error" in answer:
            raise UsageError(answer["error"])
        return answer
    raise UsageError(f"the query failed: {_cause(done)}", hint=_HINT)


def _cause(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return why the process gave no answer: its last words, else what ended it."""
    lines = done.stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if done.returncode < 0 or "memory" in last.lower():
        return "it took too much memory"
    return last[:_MAX_CAUSE_CHARS] or f"exit code {done.returncode}"


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    _limit_memory()
    from gpusight import api

    try:
        result = api.sql(api.open_captures(request["path"]), request["sql"])
        frame = result.frame
        answer: dict[str, Any] = {
            "notes": list(result.notes),
            "columns": frame.columns,
            "height": frame.height,
            "rows": list(frame.slice(request["first"], request["rows"]).iter_rows()),
        }
    except GpusightError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout, default=str)


def _limit_memory() -> None:
    """Let the process have half of the machine's memory, where the system can limit it."""
    if sys.platform == "win32":
        return
    import resource

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = max(_MIN_MEMORY, machine // 2)
    with suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
