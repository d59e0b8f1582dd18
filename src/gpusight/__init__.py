"""Read GPU profiles (Nsight Systems and Compute, PyTorch, JAX) anywhere; see what took the time.

>>> import gpusight as gs
>>> trace = gs.open("run.nsys-rep")
>>> gs.kernels(trace, within="step_*")

Every command that reads a capture has its function here. Names load when they are first used, so
that `import gpusight` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpusight._version import __version__

if TYPE_CHECKING:
    from gpusight import errors
    from gpusight.analyses.replay import changes
    from gpusight.api import (
        api_calls,
        baseline,
        compare,
        copies,
        counters,
        diagnose,
        doctor,
        drill,
        export,
        flops,
        gate,
        info,
        join,
        kernels,
        launches,
        ledger,
        memory,
        occupancy,
        occupancy_of,
        ops,
        orion_build,
        orion_check,
        orion_plot,
        questions,
        ranges,
        record,
        report,
        roofline,
        serve,
        share,
        share_check,
        sql,
        stats,
        steps,
        summary,
        timeline,
        utilisation,
        whatif,
    )
    from gpusight.api import open_captures as open  # noqa: A004 - read as gs.open, like gzip.open
    from gpusight.capture.annotate import annotate, mark
    from gpusight.capture.callback import ProfilerCallback
    from gpusight.capture.model_ranges import annotate_model
    from gpusight.capture.profile import profile
    from gpusight.capture.step import step
    from gpusight.capture.torch_profile import torch_profile
    from gpusight.errors import GpusightError
    from gpusight.findings.finding import Confidence, Evidence
    from gpusight.findings.timeline.rule import Absent, Found, Rule, Where
    from gpusight.findings.verdict import Clean, Limit
    from gpusight.model.trace import Trace
    from gpusight.views import Page, View

__all__ = [
    "Absent",
    "Clean",
    "Confidence",
    "Evidence",
    "Found",
    "GpusightError",
    "Limit",
    "Page",
    "ProfilerCallback",
    "Rule",
    "Trace",
    "View",
    "Where",
    "__version__",
    "annotate",
    "annotate_model",
    "api_calls",
    "baseline",
    "changes",
    "compare",
    "copies",
    "counters",
    "diagnose",
    "doctor",
    "drill",
    "errors",
    "export",
    "flops",
    "gate",
    "info",
    "join",
    "kernels",
    "launches",
    "ledger",
    "mark",
    "memory",
    "occupancy",
    "occupancy_of",
    "open",
    "ops",
    "orion_build",
    "orion_check",
    "orion_plot",
    "profile",
    "questions",
    "ranges",
    "record",
    "report",
    "roofline",
    "serve",
    "share",
    "share_check",
    "sql",
    "stats",
    "step",
    "steps",
    "summary",
    "timeline",
    "torch_profile",
    "utilisation",
    "whatif",
]

_ELSEWHERE = {
    "Absent": ("gpusight.findings.timeline.rule", "Absent"),
    "Clean": ("gpusight.findings.verdict", "Clean"),
    "Confidence": ("gpusight.findings.finding", "Confidence"),
    "Evidence": ("gpusight.findings.finding", "Evidence"),
    "Found": ("gpusight.findings.timeline.rule", "Found"),
    "GpusightError": ("gpusight.errors", "GpusightError"),
    "Limit": ("gpusight.findings.verdict", "Limit"),
    "Page": ("gpusight.views", "Page"),
    "ProfilerCallback": ("gpusight.capture.callback", "ProfilerCallback"),
    "Rule": ("gpusight.findings.timeline.rule", "Rule"),
    "Trace": ("gpusight.model.trace", "Trace"),
    "View": ("gpusight.views", "View"),
    "Where": ("gpusight.findings.timeline.rule", "Where"),
    "annotate": ("gpusight.capture.annotate", "annotate"),
    "annotate_model": ("gpusight.capture.model_ranges", "annotate_model"),
    "mark": ("gpusight.capture.annotate", "mark"),
    "open": ("gpusight.api", "open_captures"),
    "profile": ("gpusight.capture.profile", "profile"),
    "step": ("gpusight.capture.step", "step"),
    "torch_profile": ("gpusight.capture.torch_profile", "torch_profile"),
}
_MODULES = {"changes": "gpusight.analyses.replay.changes", "errors": "gpusight.errors"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'gpusight' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    module, attribute = _ELSEWHERE.get(name, ("gpusight.api", name))
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted({*globals(), *__all__})
