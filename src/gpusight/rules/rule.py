"""Base classes of rules for timelines and for profiled kernels, and the verdicts they return.

A rule is a class. Its file holds everything about it: the texts, the thresholds, the check, the
change that its fix makes, and where its findings happen. Those of gpusight are in `rules/timeline/`
and `rules/kernel/`, one file each, and are listed in `rules/registry.py`; a user's own may be in
any file (`--rules FILE`) or in a package that registers it under the entry point `gpusight.rules`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, TypeVar

from gpusight.analysis.aggregates import names_of
from gpusight.naming.kernel_patterns import kernel_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from gpusight.analysis.counters.launch_quantities import LaunchQuantity
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.analysis.ledger.ledger_entries import IdleCause
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import Confidence, Evidence, StackLine, TimelineFinding
    from gpusight.trace.trace import Trace


Effort: TypeAlias = Literal["one line", "config", "rewrite"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold of a rule, with the reason for its value."""

    value: float
    why: str


# Verdicts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindingLocation:
    """Where to look: a range, a kernel, an operator, a call, a line."""

    kind: str
    """`range`, `kernel`, `chain` (of kernels), `operator`, `call`, `site`, `step`, `stream` or
    `thread`."""
    name: str
    ns: float | None = None
    """Its time that the finding is about, in the sample."""
    count: int | None = None
    """How often it ran, in the sample."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The program has the problem."""

    title: str
    """The problem, in one line with its main number."""
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    confidence_reason: str
    change: tuple[Change, ...] = ()
    """What the fix changes: replayed to estimate the time that it saves."""
    recoverable_ns: float | None = None
    """Time of the sample that the fix saves, where it cannot be replayed; None for no estimate."""
    min_ns: float | None = None
    """The fix cannot make the sample shorter than this (one worker that loads data)."""
    floor_ns: float = 0.0
    """With the fix, the sample takes this long whatever else is fixed: what moves elsewhere, such
    as to workers, takes that time there."""
    measured_ns: float | None = None
    """Time of the sample that the problem takes. A large one is listed even if the replay shows no
    gain: the gain is unknown then."""
    explained_ns: Mapping[IdleCause, int] = field(default_factory=dict)
    """The idle time that it explains, by cause, where there is no change to replay."""
    leads: bool = False
    """It is about more time than the window has: it comes first."""
    estimate: str = ""
    """How the time was estimated; replaces the text of the rule."""
    why: str = ""
    """Why it costs time in this case; replaces the text of the rule."""
    fix: str = ""
    """Advice for this case, with names and numbers; replaces the text of the rule."""
    code: str = ""
    """Lines to paste; replaces the code of the rule."""
    verify: str = ""
    """How to verify the fix; replaces the text of the rule."""
    caveats: str = ""
    """When the finding is wrong in this case; replaces the text of the rule."""
    effort: Effort | None = None
    """What the fix takes in this case; replaces that of the rule."""
    where: tuple[FindingLocation, ...] = ()
    """The most relevant locations, the largest first."""
    lines: tuple[StackLine, ...] = ()
    """Lines of the program behind it, where stacks were recorded."""
    where_time: str = ""
    """What the times of the locations are (`host time of launches`), if not what is saved."""
    also: tuple[str, ...] = ()
    """Rules that detect the same cause; their findings are dropped."""
    needs: tuple[str, ...] = ()
    """Rules whose findings must be fixed first for this fix to be possible."""


@dataclass(frozen=True, slots=True)
class KernelRuleMatch(RuleMatch):
    """The launch has the problem."""

    time_share: float | None = None
    """Part of the duration that remains after the fix, 0 to 1; 1 when there is nothing to gain,
    None where that is not known."""
    at_roofline: bool | None = None
    """Where there is nothing to gain, the launch is at its roofline; replaces that of the rule."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The rule applies, and there is no such problem."""


CLEAN = Clean()


@dataclass(frozen=True, slots=True)
class RuleNotApplicable:
    """The rule cannot be evaluated, and why."""

    reason: str
    sections: tuple[str, ...] = ()
    """Sections that Nsight Compute would have to collect for it."""


UNKNOWN_PEAKS = "the peak FLOP/s of the GPU are unknown"
UNKNOWN_SMS = "the number of SMs is unknown"
"""Reasons of rules that need to know the GPU."""


RuleVerdict: TypeAlias = "RuleMatch | Clean | RuleNotApplicable"


# Rules --------------------------------------------------------------------------------------------


class Rule:
    """One cause of lost time, with its explanation; `check` is that of the subclasses."""

    id: ClassVar[str]
    detects: ClassVar[str]
    """What it looks for: `Looks for …`."""
    why: ClassVar[str]
    """Why that costs time."""
    fix: ClassVar[str]
    code: ClassVar[str] = ""
    verify: ClassVar[str] = ""
    """How to verify the fix."""
    caveats: ClassVar[str]
    """When the rule is wrong."""
    estimate: ClassVar[str]
    """How the time that the fix saves is estimated."""
    thresholds: ClassVar[Mapping[str, Threshold]] = {}
    is_fix: ClassVar[bool] = True
    """The program can be changed; else the finding is about the capture (profiler, warm-up)."""
    effort: ClassVar[Effort] = "rewrite"
    """What the fix takes: one line of code, a change of configuration, or code rewritten."""


class TimelineRule(Rule):
    """A rule for timelines."""

    min_share: ClassVar[float | None] = 0.005
    """Least share of the window that a finding must save; None for any."""
    scenario: ClassVar[str] = ""
    """Another name of its fix in `gpusight whatif` besides `apply ID`: `fuse elementwise`."""
    is_general: ClassVar[bool] = False
    """It is about what the other findings leave: `check_rest` runs after them."""
    removes_work: ClassVar[bool] = False
    """Its fix removes work that nobody needs; such a fix comes before one that saves as much."""
    cuda_code: ClassVar[str] = ""
    """Replaces `code`, which is for PyTorch, in programs that call CUDA themselves."""
    jax_code: ClassVar[str] = ""
    """The same in JAX programs."""
    snippets: ClassVar[Mapping[Framework, str]] = {}
    """The same in programs of other frameworks."""
    is_neutral: ClassVar[bool] = False
    """`code` is for programs of any framework: commands of a shell."""

    def check(self, context: RuleContext) -> RuleVerdict:
        """Check whether the program has the problem."""
        raise NotImplementedError

    def check_rest(self, context: RuleContext, _others: Sequence[RuleMatch]) -> RuleVerdict:
        """Check a general rule, once the fixes of the other findings are made."""
        return self.check(context)

    def snippet(self, framework: Framework) -> str:
        """Return the code for programs of a framework; empty where it has none for them."""
        if framework.is_array_language:
            return self.snippets.get(framework, self.code if self.is_neutral else "")
        return framework.choose(torch="", cuda=self.cuda_code, jax=self.jax_code) or self.code

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the time spans that show a finding: by default the events that it names.

        The columns are those of `rules.locations.CANDIDATES`, and `priority` where something else
        than the time of a span decides which are shown. An empty frame means the default.
        """
        from gpusight.rules.locations import events_named

        return events_named(context, finding)


@dataclass(frozen=True, slots=True)
class InstructionCounters:
    """Counters of single instructions that locate a problem."""

    metrics: tuple[str, ...]
    """Names of one counter in different versions: the first that a capture has is used."""
    less: tuple[str, ...] = ()
    """Counters to subtract: of accesses, those that are needed anyway."""
    scale: float = 1.0


class KernelRule(Rule):
    """A rule for launches that Nsight Compute profiled."""

    needs: ClassVar[tuple[LaunchQuantity, ...]] = ()
    """Quantities without which it cannot be evaluated."""
    helps: ClassVar[tuple[LaunchQuantity, ...]] = ()
    """Quantities that make its estimate better."""
    located_by: ClassVar[InstructionCounters | None] = None
    """Counters that locate a finding in the source; None for warp samples."""
    single_kernels: ClassVar[bool] = False
    """Applies to kernels only, not to graphs and ranges, which have no grid of their own."""
    explains: ClassVar[frozenset[str]] = frozenset()
    """Rules that detect the effect of which this one is the cause."""
    timeline_rule: ClassVar[str] = ""
    """The rule for timelines with the same fix, if any."""
    at_roofline: ClassVar[bool] = False
    """A match with nothing to gain means that the launch is at its roofline."""

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of Nsight Compute that collect what it needs."""
        return tuple(dict.fromkeys(q.section for q in (*self.needs, *self.helps)))

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check whether a launch with all needed quantities has the problem."""
        raise NotImplementedError

    def evaluate(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Check any launch; not applicable where a needed quantity was not measured."""
        if self.single_kernels and not launch.is_kernel:
            return RuleNotApplicable("a graph or range has no grid of its own")
        missing = [q for q in self.needs if launch.get(q) is None]
        if not missing:
            return self.check(launch)
        meaning = missing[0].meaning
        # Names such as `L2` and `SMs` keep their first letter in the middle of a sentence.
        if not (meaning[1:2].isupper() or meaning[1:2].isdigit()):
            meaning = meaning[0].lower() + meaning[1:]
        sections = tuple(dict.fromkeys(q.section for q in missing))
        return RuleNotApplicable(f"not measured: {meaning}", sections)


# The language of advice ---------------------------------------------------------------------------

T = TypeVar("T")

_TORCH_KERNELS = ("at::native", "at_cuda_detail", "c10::", "triton_")
_TORCH_RANGES = ("aten::", "ProfilerStep", "autograd::", "Optimizer.step#")
_JAX_RANGES = ("XlaModule", "PjitFunction", "TSL:", "XlaLaunch")


class Framework(enum.Enum):
    """What the host program is written with."""

    TORCH = "PyTorch"
    JAX = "JAX"
    CUPY = "CuPy"
    NUMBA = "Numba"
    JULIA = "Julia"
    CUDA = "CUDA"
    """Calls CUDA itself, or through an unknown framework."""

    @property
    def is_ml(self) -> bool:
        """It is a framework for machine learning; others are for any kind of program."""
        return self in {Framework.TORCH, Framework.JAX}

    @property
    def is_array_language(self) -> bool:
        """Programs launch kernels from Python or Julia: neither CUDA C++ nor PyTorch helps them."""
        return self in {Framework.CUPY, Framework.NUMBA, Framework.JULIA}

    def choose(self, *, torch: T, cuda: T, jax: T | None = None, other: T | None = None) -> T:
        """Return the argument of this framework; that of CUDA where it has none.

        `other` is for CuPy, Numba and Julia.
        """
        if self is Framework.TORCH:
            return torch
        if self is Framework.JAX and jax is not None:
            return jax
        return other if self.is_array_language and other is not None else cuda


_KERNEL_NAMES = {
    Framework.CUPY: re.compile(r"^cupyx?_"),
    Framework.NUMBA: re.compile(r"cudapy(?:::|\d)"),
    Framework.JULIA: re.compile(r"CuDeviceArray|CompilerMetadata|^julia_|^gpu_\w+_$"),
}
"""Names of kernels that only programs of a framework have."""
_PACKAGES = {
    "torch": Framework.TORCH,
    "jax": Framework.JAX,
    "cupy": Framework.CUPY,
    "numba": Framework.NUMBA,
}
"""Python packages whose code was seen on sampled stacks."""


def framework_of(trace: Trace) -> Framework:
    """Detect the framework from the profiler, operators, kernels, ranges and sampled stacks."""
    if trace.meta.source.startswith("jax"):
        return Framework.JAX
    if trace.has("cpu_ops") or trace.meta.source.startswith("torch"):
        return Framework.TORCH
    kernels = [*_names(trace, "kernels"), *_names(trace, "profiles")]
    ranges = _names(trace, "ranges")
    if any(mark in name for name in kernels for mark in _TORCH_KERNELS):
        return Framework.TORCH
    if any(name.startswith(_TORCH_RANGES) for name in ranges):
        return Framework.TORCH
    if any(name.startswith(_JAX_RANGES) for name in ranges):
        return Framework.JAX
    if any(kernel_origin(name) == "XLA" for name in kernels):
        return Framework.JAX
    for framework, names in _KERNEL_NAMES.items():
        if any(names.search(name) for name in kernels):
            return framework
    # Kernels of a program are not visible where its CUDA graphs were traced as one event.
    hidden = not kernels and trace.has("graph_launches")
    otherwise = Framework.TORCH if hidden and _runs_python(trace) else Framework.CUDA
    seen = {name.partition(".")[0] for name in _names(trace, "stack_frames", "module")}
    return next((_PACKAGES[package] for package in _PACKAGES if package in seen), otherwise)


def _runs_python(trace: Trace) -> bool:
    processes = _names(trace, "processes")
    return any(PurePath(name).name.startswith("python") for name in processes if name)


def _names(trace: Trace, table: str, column: str = "name") -> list[str]:
    return names_of(trace.table(table, [column])[column]) if trace.has(table) else []
