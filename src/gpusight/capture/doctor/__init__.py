"""What this machine can capture with, and what to do about what is missing.

Each module looks at one concern through the same small interface (`machine.py`) and says what it
found, what that means for which tool, and the fix. `examine` asks them all and draws the verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Can, Check, Checkup, State, Verdict
from gpusight.capture.doctor.container import container_checks
from gpusight.capture.doctor.gpu import gpu_checks
from gpusight.capture.doctor.hardware import survey
from gpusight.capture.doctor.interpreter import find_interpreter, python_checks
from gpusight.capture.doctor.machine import ThisMachine
from gpusight.capture.doctor.permissions import permission_checks
from gpusight.capture.doctor.surroundings import surrounding_checks
from gpusight.capture.doctor.tools import tool_checks
from gpusight.capture.doctor.wsl import wsl_checks
from gpusight.capture.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.capture.doctor.check import Effect
    from gpusight.capture.doctor.hardware import Hardware
    from gpusight.capture.doctor.machine import Machine

_RECORD_ORDER = (Tool.NSYS, Tool.CUPTI, Tool.TORCH)
"""As `gpusight record` chooses where it is not told; ncu measures kernels, no timeline."""
_WORST = (Can.NO, Can.PARTLY, Can.YES)


def examine(
    machine: Machine | None = None, *, python: str | None = None, folder: str | None = None
) -> Checkup:
    """Look at everything that recording depends on.

    `python` is the interpreter that programs are run with, else the one that `python` starts;
    `folder` is where captures would go, else the current one.
    """
    machine = machine or ThisMachine()
    folder = folder or str(Path.cwd())
    checks = tuple(_checks(machine, survey(machine), python, folder))
    verdicts = tuple(_verdict(tool, checks) for tool in Tool)
    able = [verdict.tool for verdict in verdicts if verdict.can is not Can.NO]
    return Checkup(checks, verdicts, next((t for t in _RECORD_ORDER if t in able), None))


def _checks(
    machine: Machine, hardware: Hardware, python: str | None, folder: str
) -> Iterator[Check]:
    yield from gpu_checks(machine, hardware)
    yield from tool_checks(machine, hardware)
    found = find_interpreter(machine, python)
    if isinstance(found, Check):
        yield found
    else:
        yield from python_checks(machine, hardware, found)
    yield from permission_checks(machine, hardware)
    yield from container_checks(machine)
    yield from wsl_checks(machine, hardware)
    yield from surrounding_checks(machine, folder)


def _verdict(tool: Tool, checks: Sequence[Check]) -> Verdict:
    """Draw together what all checks say about one tool: the worst of it decides."""
    effects = [effect for check in checks for effect in check.effects if effect.tool is tool]
    can = next((level for level in _WORST if any(e.can is level for e in effects)), Can.YES)
    own = next((check for check in checks if check.key == tool.value), None)
    there = own is not None and own.state in {State.OK, State.LIMITED}
    without = () if can is Can.NO else _whys(effects, Can.YES)
    why = () if can is Can.YES else _whys(effects, can)
    return Verdict(tool, can, own.found if own is not None and there else "", why, without)


def _whys(effects: Sequence[Effect], level: Can) -> tuple[str, ...]:
    return tuple(dict.fromkeys(effect.why for effect in effects if effect.can is level))
