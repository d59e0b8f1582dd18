"""What was planted in the captures of `shared/data`, and a client without a model that finds it.

python -m tests.mcp.planted      # prints the table of docs/agents.md
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpusight.mcp.tool_answers import BUDGET_TOKENS, count_tokens, encoded
from gpusight.mcp.workspace import Workspace
from tests.mcp.agent_captures import call
from tests.shared import SHARED

MAX_CALLS = 3
MAX_TOKENS = 6000
_FP32_GPT = {"fp32-no-tensor-cores", "unfused-attention"}
_TINY = {"elementwise-chain", "launch-bound"}
_CONV = {"launch-bound", "layout-transpose", "conv-algorithm"}
PROGRAMS: dict[str, set[str]] = {
    "gpt_small_forward": _FP32_GPT,
    "gpt_small_fwdbwd": _FP32_GPT,
    "gpt_small_train": _FP32_GPT,
    "gpt_small_train_stack": _FP32_GPT,
    "gpt_small_gpumetrics": _FP32_GPT,
    "gpt_small_train_bf16_fused": {"launch-bound"},
    "gpt_tiny_osrt": {"launch-bound"},
    "gpt_tiny_train_r1": {"launch-bound"},
    "gpt_tiny_train_r2": {"launch-bound"},
    "gpt_tiny_train_r3": {"launch-bound"},
    "gpt_tiny_train_tf32_r1": {"launch-bound"},
    "gpt_tiny_train_tf32_r2": {"launch-bound"},
    "gpt_tiny_train_tf32_r3": {"launch-bound"},
    "dataload": {"input-starved"},
    "pageable": {"pageable-copy"},
    "tiny": _TINY,
    "item": {"host-sync", "launch-bound"},  # the host is slower than the GPU anyway
    "conv": _CONV,
    "healthy": set(),
}
"""Programs by the stem of their captures, with the findings of what was planted, as README.md of
that folder has it; none for the healthy one. One of these must be the first fix."""
KERNELS: dict[str, set[str]] = {
    "copy_coalesced": {"memory-bound"},
    "copy_strided": {"uncoalesced-access"},
    "fma_heavy": {"compute-bound"},
    "fp64_heavy": {"fp64-heavy"},
    "transpose_bank_conflict": {"bank-conflict"},
    "low_occupancy_smem": {"low-occupancy-shared-memory"},
    "low_occupancy_regs": {"low-occupancy-registers"},
    "divergent": {"divergence"},
    "atomic_contention": {"atomic-contention"},
    "tiny_grid": {"small-grid"},
    "pointer_chase": {"latency-bound"},
}
"""Kernels of `ncu/kernels_full`, each with one character; `transpose_padded` is the repaired form
of another, with nothing planted."""
JOBS: dict[str, int | None] = {
    "ddp_torch_2": 2,
    "ddp_torch_-1": None,
    "ddp_nsys_2": 2,
    "ddp_nsys_-1": None,
}
"""Captures of four ranks in `ranks`: the rank that sleeps in every step; None where none does."""
_ENDINGS = (".sqlite", ".nsys-rep", ".json.gz")


@dataclass(frozen=True)
class Solved:
    """What the client found of one capture, and what that cost."""

    capture: str
    tool: str
    planted: str
    found: str
    calls: int
    tokens: int
    largest: int

    @property
    def holds(self) -> bool:
        """Return whether the cause was found within the limits."""
        return (
            bool(self.found)
            and self.calls <= MAX_CALLS
            and self.tokens <= MAX_TOKENS
            and self.largest <= BUDGET_TOKENS
        )


def program_captures() -> list[Path]:
    """List the captures of programs with something planted, in every format."""
    files = [p for folder in ("nsys", "nsys_rep", "torch") for p in SHARED.glob(f"{folder}/*")]
    return sorted(p for p in files if p.name.endswith(_ENDINGS) and _program(p) in PROGRAMS)


def _program(path: Path) -> str:
    return path.name.partition(".")[0]


def _solved(path: Path, planted: set[str], found: str, answers: list[dict[str, Any]]) -> Solved:
    tokens = [count_tokens(encoded(answer)) for answer in answers]
    names = " or ".join(sorted(planted)) or "nothing"
    name = path.relative_to(SHARED).as_posix() if path.is_relative_to(SHARED) else path.name
    return Solved(name, path.parent.name, names, found, len(answers), sum(tokens), max(tokens))


def solve_program(path: Path) -> Solved:
    """Diagnose a capture, explain the first fix, and predict it."""
    planted = PROGRAMS[_program(path)]
    with closing(Workspace([path.parent])) as workspace:
        answers = [call(workspace, "diagnose", capture=path.name)]
        first = answers[0]["fixes"][0]["id"] if answers[0]["fixes"] else ""
        if first:
            answers.append(call(workspace, "explain", capture=path.name, id=first))
            answers.append(call(workspace, "whatif", capture=path.name, changes=[f"apply {first}"]))
    is_right = first in planted if planted else not first
    return _solved(path, planted, (first or "nothing") if is_right else "", answers)


def solve_kernels(path: Path) -> list[Solved]:
    """Diagnose a report: one call lists all kernels; the second explains one."""
    made = []
    with closing(Workspace([path.parent])) as workspace:
        plan = call(workspace, "diagnose", capture=path.name)
        rows = {row["kernel"].strip("`"): row for row in plan["kernels"]}
        for kernel, planted in KERNELS.items():
            row = rows[kernel]
            answers = [plan, call(workspace, "explain", capture=path.name, id=row["id"])]
            found = row["rule"] if row["rule"] in planted else ""
            solved = _solved(path, planted, found, answers)
            made.append(replace(solved, capture=f"{solved.capture}: {kernel}"))
    return made


def solve_job(name: str, folder: Path) -> Solved:
    """Diagnose all ranks of a job: a folder of their captures, or one file of all processes."""
    files = sorted(SHARED.glob(f"ranks/{name}.*"))
    target = folder / name
    target.mkdir()
    for file in files:
        shutil.copy(file, target)
    given = {"capture": name} if len(files) > 1 else {"capture": f"{name}/{files[0].name}"}
    with closing(Workspace([folder])) as workspace:
        answer = call(workspace, "diagnose", **given, ranks=True)
    ranks = [straggler["rank"] for straggler in answer.get("stragglers", [])]
    late = JOBS[name]
    planted = set() if late is None else {f"rank {late}"}
    found = (
        ("nothing" if late is None else f"rank {late}") if ranks == [late] * bool(planted) else ""
    )
    return _solved(files[0], planted, found, [answer])


def main() -> None:
    """Print the table."""
    solved = [solve_program(path) for path in program_captures()]
    solved += solve_kernels(SHARED / "ncu" / "kernels_full.ncu-rep.xz")
    with tempfile.TemporaryDirectory() as folder:
        solved += [solve_job(name, Path(folder)) for name in JOBS]
    lines = ["| capture | planted | first finding | calls | tokens |", "|---|---|---|---:|---:|"]
    for one in solved:
        cells = (one.capture, one.planted, one.found or "**other**", one.calls, f"{one.tokens:,}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
