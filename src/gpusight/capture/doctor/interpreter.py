"""Checks of the Python that runs the program: what the recorders inside it need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.capture.doctor.check import Can, Check, Effect, State
from gpusight.capture.doctor.hardware import last_line, probe
from gpusight.capture.doctor.machine import shown
from gpusight.capture.programs import OLDEST_PYTHON
from gpusight.capture.request import Tool
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.capture.doctor.hardware import Hardware
    from gpusight.capture.doctor.machine import Machine, Ran

_TORCH_TIMEOUT_S = 90.0
"""Importing PyTorch from a cold network disk takes its time."""
_INSIDE = (Tool.CUPTI, Tool.TORCH)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that programs are run with."""

    path: str
    place: str
    """The path as it is shown."""
    version: tuple[int, ...]
    packages: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Give its version and place."""
        return f"{'.'.join(map(str, self.version))} ({self.place})"


def find_interpreter(machine: Machine, python: str | None) -> Interpreter | Check:
    """Ask the Python that was named, or the one that `python` starts; a Check says why not."""
    path = _path(machine, python)
    told = probe(machine, path, "ask_packages")
    if isinstance(told, dict):
        return Interpreter(path, shown(machine, path), tuple(told["python"]), told["packages"])
    return _mute(shown(machine, path), told)


def _path(machine: Machine, python: str | None) -> str:
    if python is None:
        return machine.which("python") or machine.which("python3") or sys.executable
    found = machine.which(python)
    if found is None:
        raise UsageError(f"no Python at {python}", hint="--python takes the path of an interpreter")
    return found


def _mute(place: str, ran: Ran | None) -> Check:
    return Check(
        "python",
        "Python",
        State.MISSING,
        f"{place} does not answer: {last_line(ran)}",
        "What records inside a program (cupti, torch, --steps) needs a Python that works.",
        "Name the Python of your program:",
        ("gpusight doctor --python PATH",),
        tuple(Effect(tool, Can.NO, "Python does not answer") for tool in _INSIDE),
    )


def python_checks(machine: Machine, hardware: Hardware, python: Interpreter) -> Iterator[Check]:
    """Look at a Python and the packages in it."""
    yield _python(python)
    yield _cupti(machine, hardware, python)
    yield _torch(machine, hardware, python)
    yield _nvtx(python)


def _python(python: Interpreter) -> Check:
    if python.version >= OLDEST_PYTHON:
        return Check("python", "Python", State.OK, python.name)
    return Check(
        "python",
        "Python",
        State.LIMITED,
        python.name,
        "What records inside a Python program (cupti, torch, --steps) needs Python 3.10.",
        "Name another Python, or record with nsys as a whole:",
        ("gpusight doctor --python PATH",),
        tuple(Effect(tool, Can.NO, "needs Python 3.10") for tool in _INSIDE),
    )


def _cupti(machine: Machine, hardware: Hardware, python: Interpreter) -> Check:
    told = probe(machine, python.path, "ask_cupti")
    if not isinstance(told, dict):
        return _no_cupti(
            State.LIMITED, f"cannot be looked for: {last_line(told)}", hardware, python
        )
    if told["library"] is None and told["unfit"] is None:
        return _no_cupti(State.MISSING, f"{python.place} finds no libcupti", hardware, python)
    place = shown(machine, told["library"] or told["unfit"])
    if told["library"] is None:
        found = f"{place} is for a later CUDA than the driver's"
        return _no_cupti(State.LIMITED, found, hardware, python)
    if hardware.usable and not told["works"]:
        found = f"{place} does not work: {told['why']}"
        return _no_cupti(State.LIMITED, found, hardware, python)
    return Check("cupti", "cupti", State.OK, place)


def _no_cupti(state: State, found: str, hardware: Hardware, python: Interpreter) -> Check:
    package = "cupti-python" if hardware.cuda is None else f"'cupti-python=={hardware.cuda[0]}.*'"
    return Check(
        "cupti",
        "cupti",
        state,
        found,
        "Without nsys, CUPTI records any CUDA program that runs in Python.",
        "Install a libcupti for the driver's CUDA (PyTorch's CUDA packages, Triton and CUDA "
        "toolkits bring one too; CUDA_HOME says where a toolkit is):",
        (f"{python.place} -m pip install {package}",),
        (Effect(Tool.CUPTI, Can.NO, found),),
    )


def _torch(machine: Machine, hardware: Hardware, python: Interpreter) -> Check:
    if python.packages.get("torch") is None:
        return _no_torch(python)
    told = probe(machine, python.path, "ask_torch", _TORCH_TIMEOUT_S)
    if not isinstance(told, dict):
        found = f"torch {python.packages['torch']} cannot be imported: {last_line(told)}"
        effects = (Effect(Tool.TORCH, Can.NO, found),)
        return Check("torch", "torch", State.MISSING, found, "It cannot record.", effects=effects)
    return _asked_torch(hardware, told)


def _asked_torch(hardware: Hardware, told: dict[str, Any]) -> Check:
    found = f"torch {told['version']}, built for {_build(told)}"
    if not hardware.usable:  # said already, and no fault of PyTorch
        return Check("torch", "torch", State.OK, found)
    if not told["available"]:
        blame = _blame(hardware, told)
        means = f"PyTorch sees no GPU{blame}; it records operators on the CPU."
        fix = "Install the PyTorch that is built for the driver's CUDA."
        why = "PyTorch sees no GPU: CPU operators only"
    elif "CUDA" not in told["activities"]:
        means = "This PyTorch was built without CUPTI: its traces hold no kernels."
        fix = "Record with --with nsys, or install a PyTorch that is built with Kineto and CUPTI."
        why = "this PyTorch records no kernels"
    else:
        return Check("torch", "torch", State.OK, f"{found}, sees the GPU")
    effects = (Effect(Tool.TORCH, Can.PARTLY, why),)
    return Check("torch", "torch", State.LIMITED, found, means, fix, effects=effects)


def _build(told: dict[str, Any]) -> str:
    if told["cuda"]:
        return f"CUDA {told['cuda']}"
    return f"ROCm {told['hip']}" if told["hip"] else "the CPU"


def _blame(hardware: Hardware, told: dict[str, Any]) -> str:
    """Say why, where the driver is older than the CUDA that PyTorch was built for."""
    if not told["cuda"]:
        return ", since it was built without CUDA"
    built = int(str(told["cuda"]).partition(".")[0])
    if hardware.cuda is not None and built > hardware.cuda[0]:
        return f", since the driver supports CUDA {hardware.cuda[0]} only"
    return ""


def _nvtx(python: Interpreter) -> Check:
    version = python.packages.get("nvtx")
    found = "not installed; gs.annotate does not need it" if version is None else f"nvtx {version}"
    return Check("nvtx", "nvtx", State.OK, found)


def _no_torch(python: Interpreter) -> Check:
    return Check(
        "torch",
        "torch",
        State.MISSING,
        f"torch is not installed in {python.place}",
        "Only programs that use PyTorch need it.",
        "Install it, or name another Python with --python:",
        (f"{python.place} -m pip install torch",),
        (Effect(Tool.TORCH, Can.NO, "torch is not installed"),),
    )
