"""The tools of `gpusight mcp`: what an agent can request, and the arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.mcp.capture_answers import (
    MAX_SQL_ROWS,
    compare,
    open_capture,
    query,
    record,
    what_if,
    window,
)
from gpusight.mcp.finding_answers import diagnose, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.mcp.tool_answers import ToolAnswer
    from gpusight.mcp.workspace import Workspace


@dataclass(frozen=True)
class AgentTool:
    """One tool: what it is for, its arguments as JSON schema, and the function that answers."""

    name: str
    description: str
    run: Callable[[Workspace, Mapping[str, Any]], ToolAnswer]
    properties: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    runs_programs: bool = False
    is_separate: bool = False
    """Answered in a process of its own, which no other call waits for."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


_CAPTURE = {"type": "string", "description": "path as open lists it"}
_STEPS = {"type": "string", "description": "steps, such as 3-7 (default: all without warm-up)"}
_CURSOR = {"type": "string", "pattern": "^[0-9]{1,8}$", "description": "cursor of the last answer"}
_SIDE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 64}
_TIME = {"type": "number", "minimum": -1e12, "maximum": 1e12}
_PROCESS = {"type": "string", "description": "pid (default: the worst)"}

TOOLS: dict[str, AgentTool] = {
    tool.name: tool
    for tool in (
        AgentTool(
            "open",
            "List the GPU profiles in the folders of this server, or show what one holds "
            "(tool, GPUs, processes, rows of each table).",
            open_capture,
            {"capture": _CAPTURE, "cursor": _CURSOR},
        ),
        AgentTool(
            "diagnose",
            "Start here. What to fix, in the order to do it: fix ids and what each saves, step "
            "time, where the time goes. For nsys, torch.profiler, JAX; for ncu, a row per kernel; "
            "for a folder or pattern (job/rank*.json.gz) of all ranks, who is late and why.",
            diagnose,
            {
                "capture": _CAPTURE,
                "report": {"type": "string", "description": "ncu report of the same program"},
                "steps": _STEPS,
                "process": _PROCESS,
                "ranks": {"type": "boolean", "description": "processes are ranks of one job"},
                "cursor": _CURSOR,
            },
            ("capture",),
        ),
        AgentTool(
            "explain",
            "One id in full: a finding (evidence, code to change, where, caveats, how to verify), "
            "a ledger entry (ledger:idle/framework), a rank (rank:2), an event (kernels:17).",
            explain,
            {
                "capture": _CAPTURE,
                "id": {"type": "string"},
                "report": {"type": "string"},
                "steps": _STEPS,
                "process": _PROCESS,
                "cursor": _CURSOR,
            },
            ("capture", "id"),
        ),
        AgentTool(
            "whatif",
            "Predict the step time after changes, by simulation.",
            what_if,
            {
                "capture": _CAPTURE,
                "changes": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": 20,
                    "description": "'apply launch-bound' (an id), 'speedup matmul=4x', 'speedup "
                    "kernel:*gemm*=2x', 'precision bf16', 'remove sync|input|copies', "
                    "'fuse optimizer|elementwise|attention', 'overlap copies', 'graph'",
                },
                "steps": _STEPS,
                "process": _PROCESS,
            },
            ("capture", "changes"),
        ),
        AgentTool(
            "compare",
            "Compare captures before and after a change: step time with its interval, what "
            "changed and why, findings resolved and new.",
            compare,
            {"before": _SIDE, "after": _SIDE, "cursor": _CURSOR},
            ("before", "after"),
        ),
        AgentTool(
            "query",
            "SELECT over the tables of a capture (kernels, copies, api_calls, ranges, cpu_ops, "
            "syncs, …). A wrong column name is answered with the columns of the table. Each table "
            "has row: explain takes kernels:ROW.",
            query,
            {
                "capture": _CAPTURE,
                "sql": {"type": "string", "maxLength": 10000},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_SQL_ROWS},
                "cursor": _CURSOR,
            },
            ("capture", "sql"),
            is_separate=True,
        ),
        AgentTool(
            "window",
            "What runs between two times, in ms since the start of the capture: GPU utilization, "
            "kernels, longest events with ids.",
            window,
            {"capture": _CAPTURE, "start_ms": _TIME, "end_ms": _TIME, "cursor": _CURSOR},
            ("capture", "start_ms", "end_ms"),
        ),
        AgentTool(
            "record",
            "Run a program under a profiler and give the capture. With drill (a timeline), "
            "measure its costly kernels with ncu.",
            record,
            {
                "program": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "output": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,80}$"},
                "drill": {"type": "string"},
                "timeout_s": {"type": "number", "minimum": 1, "maximum": 86400},
            },
            ("program",),
            runs_programs=True,
        ),
    )
}
"""Every tool, by name."""


def tools_of(workspace: Workspace) -> list[AgentTool]:
    """List the tools that a workspace allows."""
    return [tool for tool in TOOLS.values() if workspace.allow_run or not tool.runs_programs]
