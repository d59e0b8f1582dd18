"""From a GPU profile (Nsight Systems, Nsight Compute, PyTorch, JAX) to what to fix.

>>> import gpusight as gs
>>> trace = gs.open("run.nsys-rep")
>>> gs.diagnose(trace)
>>> gs.explain(trace, 1)
>>> gs.kernels(trace, within="step_*")

Every command that reads a capture has a function here. Names are imported on first use, which
keeps `import gpusight` fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpusight._version import __version__

if TYPE_CHECKING:
    from gpusight import errors
    from gpusight.analysis.replay import changes
    from gpusight.api import (
        api_calls,
        baseline,
        compare,
        copies,
        counters,
        diagnose,
        doctor,
        drill,
        explain,
        export,
        flops,
        gate,
        hotspots,
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
        rank_digest,
        ranks,
        ranks_whatif,
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
        utilization,
        whatif,
    )
    from gpusight.api import open_captures as open  # noqa: A004 - read as gs.open, like gzip.open
    from gpusight.errors import GpusightError
    from gpusight.recording.inside.annotate import annotate, mark
    from gpusight.recording.inside.model_ranges import annotate_model
    from gpusight.recording.inside.profile_part import profile
    from gpusight.recording.inside.profiler_callback import ProfilerCallback
    from gpusight.recording.inside.step_loop import step
    from gpusight.recording.inside.torch_session import torch_profile
    from gpusight.render.result_view import Page, Result, View
    from gpusight.rules.finding import Confidence, Evidence
    from gpusight.rules.rule import (
        Clean,
        FindingLocation,
        KernelRule,
        KernelRuleMatch,
        RuleMatch,
        RuleNotApplicable,
        Threshold,
        TimelineRule,
    )
    from gpusight.trace.trace import Trace

__all__ = [
    "Clean",
    "Confidence",
    "Evidence",
    "FindingLocation",
    "GpusightError",
    "KernelRule",
    "KernelRuleMatch",
    "Page",
    "ProfilerCallback",
    "Result",
    "Rule",
    "RuleMatch",
    "RuleNotApplicable",
    "Threshold",
    "TimelineRule",
    "Trace",
    "View",
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
    "explain",
    "export",
    "flops",
    "gate",
    "hotspots",
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
    "rank_digest",
    "ranks",
    "ranks_whatif",
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
    "utilization",
    "whatif",
]

_ELSEWHERE = {
    "RuleNotApplicable": ("gpusight.rules.rule", "RuleNotApplicable"),
    "Clean": ("gpusight.rules.rule", "Clean"),
    "Confidence": ("gpusight.rules.finding", "Confidence"),
    "Evidence": ("gpusight.rules.finding", "Evidence"),
    "RuleMatch": ("gpusight.rules.rule", "RuleMatch"),
    "GpusightError": ("gpusight.errors", "GpusightError"),
    "Threshold": ("gpusight.rules.rule", "Threshold"),
    "Page": ("gpusight.render.result_view", "Page"),
    "ProfilerCallback": ("gpusight.recording.inside.profiler_callback", "ProfilerCallback"),
    "KernelRule": ("gpusight.rules.rule", "KernelRule"),
    "KernelRuleMatch": ("gpusight.rules.rule", "KernelRuleMatch"),
    "TimelineRule": ("gpusight.rules.rule", "TimelineRule"),
    "Result": ("gpusight.render.result_view", "Result"),
    "Rule": ("gpusight.rules.rule", "Rule"),
    "Trace": ("gpusight.trace.trace", "Trace"),
    "View": ("gpusight.render.result_view", "View"),
    "FindingLocation": ("gpusight.rules.rule", "FindingLocation"),
    "annotate": ("gpusight.recording.inside.annotate", "annotate"),
    "annotate_model": ("gpusight.recording.inside.model_ranges", "annotate_model"),
    "mark": ("gpusight.recording.inside.annotate", "mark"),
    "open": ("gpusight.api", "open_captures"),
    "profile": ("gpusight.recording.inside.profile_part", "profile"),
    "step": ("gpusight.recording.inside.step_loop", "step"),
    "torch_profile": ("gpusight.recording.inside.torch_session", "torch_profile"),
}
_MODULES = {"changes": "gpusight.analysis.replay.changes", "errors": "gpusight.errors"}


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


def load_ipython_extension(shell: Any) -> None:
    """Add `%gpusight` and `%%gpusight`: IPython calls this on `%load_ext gpusight`."""
    importlib.import_module("gpusight.notebook").register(shell)


def __dir__() -> list[str]:
    """List the public names."""
    return list(__all__)
