"""Answers about captures: lists, changes, rows, stretches of time, and new recordings."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from gpusight import api
from gpusight.errors import UsageError
from gpusight.mcp.query_process import run_query
from gpusight.mcp.tool_answers import (
    MAX_CELL_CHARS,
    NOTICE,
    ToolAnswer,
    first_row,
    milliseconds,
    page,
    percent,
    quoted,
    rounded,
    selection,
    sentence,
    without_empty,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.mcp.workspace import Workspace
    from gpusight.trace.trace import Trace

MAX_SQL_ROWS = 1000
DEFAULT_SQL_ROWS = 50
_MAX_EVENTS = 200
"""Longest events that `window` lists."""
_MAX_OUTPUT_CHARS = 2000
"""Of what a recorded program printed last."""
_RECORD_TIMEOUT_S = 600


def open_capture(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """List the captures of the folders, or describe one."""
    if "capture" not in given:
        listed = workspace.captures()
        files = [
            {"capture": quoted(workspace.name(path), 300), "kb": path.stat().st_size // 1000}
            for path in listed.paths
        ]
        hint = "" if files else "no captures here: record one with `gpusight record -- PROGRAM`"
        answer = without_empty({"notice": NOTICE, "hint": hint, "notes": list(listed.notes)})
        return page(answer, "captures", files, first_row(given))
    trace = workspace.trace(given["capture"])
    rows = api.info(trace).to_dict()["rows"]
    sections: dict[str, list[Any]] = {}
    for row in rows:
        sections.setdefault(row["section"], []).append(row)
    answer = without_empty(
        {
            "notice": NOTICE,
            "capture": quoted(workspace.name(workspace.path(given["capture"])), 300),
            "tool": quoted(trace.meta.tool),
            "gpus": [quoted(row["name"]) for row in sections.get("devices", [])],
            "processes": [
                without_empty(
                    {
                        "pid": row["pid"],
                        "name": quoted(row["name"] or ""),
                        **{key: row[key] for key in ("kernels", "profiles") if key in row},
                    }
                )
                for row in sections.get("processes", [])[:20]
            ],
            "rows": {
                row["table"]: row["rows"] for row in sections.get("contents", []) if row["rows"]
            },
            "warnings": [sentence(text) for text in trace.warnings],
        }
    )
    answer["next"] = "diagnose"
    return answer


def what_if(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Simulate changes, in the words of `gpusight whatif`."""
    changes = []
    for text in given["changes"]:
        verb, _, target = text.removeprefix("--").partition(" ")
        changes.append((verb, target.strip()))
    verbs = ("speedup", "precision", "remove", "fuse", "overlap", "apply", "graph")
    for verb, _ in changes:
        if verb not in verbs:
            raise UsageError(f"no change {verb!r}", hint=f"changes are {', '.join(verbs)}")
    options = selection(given)
    result = api.whatif(workspace.trace(given["capture"]), changes=changes, **options).to_dict()
    steps = max(1, result["steps"])
    unit = "ms_per_step" if result["steps"] else "ms"
    answer = {
        "notice": NOTICE,
        "steps": result["steps"],
        f"now_{unit}": milliseconds(result["unchanged_ns"] / steps),
        f"then_{unit}": milliseconds(result["changed_ns"] / steps),
        "speedup": rounded(result["unchanged_ns"] / max(1, result["changed_ns"])),
        "simulation_error_percent": percent(result["error"]),
        "changes": [
            {
                "change": quoted(change["change"]),
                "alone_ms": milliseconds(change["alone_ns"] / steps),
                "after_those_above_ms": milliseconds(change["after_ns"] / steps),
            }
            for change in result["changes"]
        ],
        "notes": [sentence(note) for note in result.get("notes", [])],
    }
    return without_empty(answer)


def compare(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Compare captures before and after a change."""
    sides = [[workspace.path(name) for name in given[side]] for side in ("before", "after")]
    result = api.compare(*sides).to_dict()
    step = result["verdict"]["step_time"]
    verdict, noise_ns = step["verdict"], step["run_noise"]
    if noise_ns is not None and verdict in ("lower", "higher") and abs(step["change"]) <= noise_ns:
        verdict += " in these runs; record 3 or more per side"
    changed = [
        without_empty(
            {
                "metric": metric["label"],
                "before": None if metric["before"] is None else rounded(metric["before"], 4),
                "after": None if metric["after"] is None else rounded(metric["after"], 4),
                "change_percent": percent(metric["ratio"]),
                "verdict": metric["verdict"],
                "missing": metric["missing"],
            }
        )
        for metric in result["metrics"]
    ]
    findings = [
        without_empty(
            {
                key: sentence(value) if isinstance(value, str) else value
                for key, value in finding.items()
                if key in ("rule", "change", "status", "fate", "title")
            }
        )
        for finding in result["findings"]
    ]
    answer = without_empty(
        {
            "notice": NOTICE,
            "step_time": without_empty(
                {
                    "before_ms": milliseconds(step["before"]),
                    "after_ms": milliseconds(step["after"]),
                    "change_percent": percent(step["ratio"]),
                    "interval_ms": [milliseconds(step["low"]), milliseconds(step["high"])]
                    if step["low"] is not None
                    else None,
                    "verdict": verdict,
                    "runs_of_one_program_may_differ_by_ms": milliseconds(noise_ns),
                }
            ),
            "explanation": [quoted(text, 400) for text in result["explanation"]],
            "differences": [quoted(item["text"], 300) for item in result["differences"]],
            "findings": findings,
            "notes": [quoted(note, 300) for note in result["meta"]["notes"]],
            "units": "times of metrics are ns per step, sizes bytes",
        }
    )
    return page(answer, "metrics", changed, first_row(given))


def query(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Run a SELECT over the tables of a capture."""
    first, limit = first_row(given), given.get("limit", DEFAULT_SQL_ROWS)
    found = run_query(workspace.path(given["capture"]), given["sql"], first, limit)
    rows = [[_cell(value) for value in row] for row in found["rows"]]
    answer: ToolAnswer = {
        "notice": NOTICE,
        "columns": [quoted(name) for name in found["columns"]],
        "rows_of_query": found["height"],
        "units": "columns of tables: times are ns since the start of the capture, sizes bytes; "
        "what is computed keeps the name of a column unless AS gives another",
    }
    if found["notes"]:
        answer["notes"] = [sentence(note) for note in found["notes"]]
    answer = page(answer, "rows", rows)
    shown = first + len(answer["rows"])
    if shown < found["height"]:
        answer |= {"cursor": str(shown), "total": found["height"]}
    return answer


def _cell(value: object) -> object:
    if value is None or isinstance(value, (bool, int)):
        return value
    return rounded(value, 6) if isinstance(value, float) else quoted(value, MAX_CELL_CHARS)


def window(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Show what runs between two times."""
    from gpusight.naming.kernel_names import unique_short_names
    from gpusight.viewer.selection_measures import longest_events, measure
    from gpusight.viewer.timeline_view import ViewerTimeline

    start_ns, end_ns = (round(given[key] * 1e6) for key in ("start_ms", "end_ms"))
    trace: Trace = workspace.trace(given["capture"])
    timeline = ViewerTimeline(trace)
    if end_ns < timeline.start_ns or start_ns > timeline.end_ns:
        begin_ms, last_ms = timeline.start_ns / 1e6, timeline.end_ns / 1e6
        raise UsageError(
            "nothing was recorded then", hint=f"the capture is from {begin_ms:g} to {last_ms:g} ms"
        )
    measured = measure(timeline, start_ns, end_ns)
    length_ns = end_ns - start_ns
    answer: ToolAnswer = {
        "notice": NOTICE,
        "ms": milliseconds(length_ns),
        "gpus": [
            {
                "device": device.device,
                "busy_percent": percent(device.busy_ns / length_ns),
                "kinds_ms": {kind.key: milliseconds(kind.ns) for kind in device.by},
            }
            for device in measured.devices
        ],
    }
    names = unique_short_names(kernel.name for kernel in measured.kernels)
    longest = _longest_launches(trace, start_ns, end_ns) if measured.kernels else {}
    answer["kernels"] = [
        {
            "name": quoted(names[k.name]),
            "ms": milliseconds(k.total_ns),
            "count": k.count,
            "longest": f"kernels:{longest[k.name]}",
        }
        for k in measured.kernels[:10]
    ]
    events = [
        {
            "id": f"{event.table}:{event.row}",
            "name": quoted(event.name),
            "start_ms": event.start_ns / 1e6,
            "ms": milliseconds(event.end_ns - event.start_ns),
        }
        for event in longest_events(trace, start_ns, end_ns, _MAX_EVENTS)
    ]
    return page(answer, "longest_events", events, first_row(given))


def _longest_launches(trace: Trace, start_ns: int, end_ns: int) -> dict[str, int]:
    """Give the row of the longest launch of each kernel in a stretch of time."""
    import polars as pl

    launches = (
        trace.table("kernels", ["start_ns", "end_ns", "name"])
        .with_row_index("row")
        .filter((pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns))
        .sort(pl.col("start_ns") - pl.col("end_ns"), maintain_order=True)
        .unique("name", keep="first", maintain_order=True)
    )
    return dict(launches.select(pl.col("name").cast(pl.String), "row").iter_rows())


def record(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Run a program under a profiler; `drill` chooses the kernels of a timeline to measure."""
    if not workspace.allow_run:
        raise UsageError(
            "this server runs no programs", hint="start it with gpusight mcp --allow-run"
        )
    folder = workspace.folders[0]
    known = set(workspace.captures().paths)
    program = [str(word) for word in given["program"]]
    options = ["-o", str(folder / given["output"])] if "output" in given else []
    if "drill" in given:
        timeline = str(workspace.path(given["drill"]))
        command = ["drill", timeline, "--run", *options, "--", *program]
    else:
        command = ["record", *options, "--", *program]
    # Its output must not reach ours, which is the connection to the agent.
    try:
        done = subprocess.run(  # noqa: S603 - what --allow-run allows
            [sys.executable, "-m", "gpusight", *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=given.get("timeout_s", _RECORD_TIMEOUT_S),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"the program did not end within {error.timeout:g} s",
            hint="give a longer timeout_s, or record fewer steps",
        ) from error
    output = done.stdout.decode("utf-8", "replace")
    new = [path for path in workspace.captures().paths if path not in known]
    return without_empty(
        {
            "notice": NOTICE,
            "exit_code": done.returncode,
            "captures": [quoted(workspace.name(path), 300) for path in new],
            "output": [
                quoted(line, 200) for line in output[-_MAX_OUTPUT_CHARS:].splitlines()[-15:]
            ],
            "next": "diagnose" if new else None,
        }
    )
