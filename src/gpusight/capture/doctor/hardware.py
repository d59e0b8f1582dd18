"""The GPUs and the driver, asked once for all checks."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusight.capture.doctor.generations import Pair
    from gpusight.capture.doctor.machine import Machine, Ran

PROBES = Path(__file__).parent / "probes"
SMI_PLACES = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_FIELDS = ("name", "driver_version", "compute_cap", "mig.mode.current")
_OLD_FIELDS = ("name", "driver_version", "mig.mode.current")
"""Drivers before 510 do not tell the compute capability."""
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([\d.]+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    capability: Pair | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Hardware:
    """What nvidia-smi and the driver's library tell."""

    gpus: tuple[Gpu, ...] = ()
    """Those of the machine; where only CUDA was asked, those it shows this user."""
    driver: str | None = None
    """The driver's version, such as 580.82.07."""
    cuda: Pair | None = None
    """The newest CUDA that the driver supports."""
    library: bool | None = None
    """The driver's library could be loaded; None: it was not asked."""
    visible: int | None = None
    """GPUs that CUDA shows to programs started from here."""
    failed: int = 0
    """The error of the driver's library when asked for GPUs; 0: none."""
    complaint: str = ""
    """What nvidia-smi said when it did not answer."""

    @property
    def capabilities(self) -> tuple[Pair, ...]:
        """The compute capabilities that are known, each once."""
        return tuple(dict.fromkeys(g.capability for g in self.gpus if g.capability))

    @property
    def usable(self) -> bool:
        """Tell whether a program started from here finds a GPU."""
        return bool(self.gpus) and self.visible != 0 and not self.failed


def survey(machine: Machine) -> Hardware:
    """Ask the machine for its GPUs; nothing is initialised in this process."""
    told = _asked_driver(machine)
    gpus, driver, complaint = _asked_smi(machine)
    devices = tuple(
        Gpu(str(d["name"]), (d["capability"][0], d["capability"][1]))
        for d in told.get("devices", ())
    )
    version = told.get("version") or 0
    return Hardware(
        gpus=_with_capability(gpus, devices) or devices,
        driver=driver or _module_version(machine),
        cuda=(version // 1000, version % 1000 // 10) if version else None,
        library=told.get("library"),
        visible=len(devices) if told.get("library") else None,
        failed=told.get("failed", 0),
        complaint=complaint,
    )


def probe(machine: Machine, python: str, name: str, timeout_s: float = 20.0) -> Any:
    """Run a probe with a Python; gives what it said, or how it ended without an answer."""
    ran = machine.run([python, str(PROBES / f"{name}.py")], timeout_s)
    if ran is None or not ran.fine:
        return ran
    try:
        return json.loads(ran.out.splitlines()[-1])  # packages may print on import
    except (IndexError, ValueError):
        return ran


def last_line(ran: Ran | None) -> str:
    """Give the last thing that a program said when it failed."""
    if ran is None:
        return "it cannot be started"
    if ran.code is None:
        return "it took too long"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {ran.code}"


def _asked_driver(machine: Machine) -> dict[str, Any]:
    told = probe(machine, sys.executable, "ask_driver")
    return told if isinstance(told, dict) else {}


def _asked_smi(machine: Machine) -> tuple[tuple[Gpu, ...], str | None, str]:
    program = machine.which("nvidia-smi") or next(filter(machine.exists, SMI_PLACES), None)
    if program is None:
        return (), None, ""
    ran: Ran | None = None
    for fields in (_FIELDS, _OLD_FIELDS):
        query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        ran = machine.run(query)
        if ran is not None and ran.fine:
            rows = [_row(fields, line) for line in ran.out.splitlines() if line.strip()]
            driver = rows[0]["driver_version"] if rows else None
            return tuple(map(_gpu, rows)), driver, ""
    return (), None, last_line(ran)


def _row(fields: tuple[str, ...], line: str) -> dict[str, str]:
    return dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False))


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        row["name"], _pair(row.get("compute_cap", "")), row.get("mig.mode.current") == "Enabled"
    )


def _pair(text: str) -> Pair | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _with_capability(gpus: tuple[Gpu, ...], devices: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Fill in from CUDA what an old nvidia-smi does not tell."""
    known = {device.name: device.capability for device in devices}
    return tuple(Gpu(g.name, g.capability or known.get(g.name), g.mig) for g in gpus)


def _module_version(machine: Machine) -> str | None:
    found = _MODULE.search(machine.read("/proc/driver/nvidia/version") or "")
    return found[1] if found else None
