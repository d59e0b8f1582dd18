"""startup-bound: a program that mostly starts, loads code and ends, or copies around its steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.launch_index import launched, of_process
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.selection import GPU_WORK, ResolvedSelection
from gpusight.analysis.steps.window_headline import WindowKind
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import largest, summed_locations
from gpusight.rules.locations import host_events, single_span
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals
from gpusight.units import format_rate, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.trace import Trace


MIN_SHARE = Threshold(
    0.1, "share of the capture in start-up, setup calls and the end of the program"
)
MIN_NS = Threshold(1e6, "ns; less is the first launch")
MIN_FIRST_SHARE = Threshold(
    0.5, "share of the capture above which this is listed first: other fixes change little then"
)
MIN_COPY_SHARE = Threshold(
    0.1,
    "share of the GPU's copies and kernels in host copies before the first step or after the last",
)
MIN_CONTEXT_NS = Threshold(
    10e6, "ns of the first allocation or free; above it, the call creates the context"
)
MIN_LOADING_NS = Threshold(1e6, "ns of a launch call; above it, the launch loads code first")
_GROUPS = {
    "unloading_ns": ("unloading code", re.compile(r"(?:Module|Library)Unload")),
    "code_ns": (
        "loading and compiling code",
        re.compile(r"Module|Library|Link|nvrtc|FuncLoad|FuncGetAttributes|GetProcAddress"),
    ),
    "context_ns": (
        "creating and destroying contexts",
        re.compile(r"^cuInit|Ctx|DeviceReset|SetDevice|DeviceGet|DeviceProperties|Peer"),
    ),
    "handles_ns": (
        "creating handles of libraries",
        re.compile(
            r"^(?:cublas|cudnn|cusolver|cusparse|cufft|curand|nccl)\w*(?:Create|Init|Destroy)"
        ),
    ),
    "graphs_ns": ("capturing and instantiating graphs", re.compile(r"Graph(?!Launch)|Capture")),
    "memory_ns": (
        "allocating and freeing memory",
        re.compile(r"Alloc|Malloc|Free|Register|Unmap|Map$|Release|AddressReserve|SetAccess"),
    ),
}
"""What calls do at the start and the end of a program: the first that fits their name."""
_MEMORY, _CODE, _CONTEXT, _GRAPHS = "memory_ns", "code_ns", "context_ns", "graphs_ns"
_HOST_COPIES = ["Host-to-Device", "Device-to-Host"]
_LOADING = {"unloading_ns", _CODE, _CONTEXT}
"""Where loading code on demand saves time."""


@dataclass(frozen=True)
class _Spans:
    """The parts of a capture that this rule is about."""

    start_ns: int
    """Of the capture."""
    window_ns: int
    """When the window starts, without the start of the program."""
    last_ns: int
    """End of the last GPU activity."""
    end_ns: int
    setup_ns: int
    """Idle time in setup calls up to the last activity, inside the window."""
    ending_ns: int
    """Idle time after it."""
    explained_ns: dict[IdleCause, int]
    """Both, by cause."""
    copies: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Where steps are known: the H2D and D2H copies before the first and after the last."""

    @property
    def capture_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def before_ns(self) -> int:
        return self.window_ns - self.start_ns

    @property
    def total_ns(self) -> int:
        return self.before_ns + self.setup_ns + self.ending_ns


class StartupBound(TimelineRule):
    """Programs that mostly start and end."""

    id = "startup-bound"
    detects = (
        "Looks for captures that are mostly start-up, setup calls and the end of the program. It "
        "names contexts, library handles, loading and unloading of code, graph capture, and "
        "allocation. Where steps are known, it looks outside of them, also for copies that run "
        "once. Programs of PyTorch and JAX load a model first: there, steps are enough."
    )
    why = (
        "Creating a context takes some hundred milliseconds, and each module is loaded before its "
        "first kernel runs. A short program spends more on that than on its work."
    )
    fix = (
        "Do it once for many runs: keep the process alive, load code lazily, and build for the GPU "
        "of the machine. To measure the work alone, record a later part of the run."
    )
    code = """\
export CUDA_MODULE_LOADING=LAZY                # load a kernel when it first runs
gpusight record --delay 5 -- ./program         # record without a start of 5 s
"""
    is_neutral = True
    verify = "`gpusight ledger --window all` shows less `idle/setup`, and GPU busy is higher."
    effort = "config"
    caveats = (
        "A program that runs once has to start. What comes before the first CUDA call (imports, "
        "reading files) has no names here."
    )
    estimate = (
        "A program has to start and to end, and the capture does not show how much of it can "
        "be avoided."
    )
    thresholds: ClassVar = {
        "min_share": MIN_SHARE,
        "min_ns": MIN_NS,
        "min_first_share": MIN_FIRST_SHARE,
        "min_copy_share": MIN_COPY_SHARE,
        "min_context_ns": MIN_CONTEXT_NS,
        "min_loading_ns": MIN_LOADING_NS,
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure what comes before the first launch, setup calls, and what follows the work."""
        steps = context.focus.steps
        if steps and (context.framework.is_ml or context.focus.kind is not WindowKind.STEPS):
            return RuleNotApplicable("steps are known: the start of the program is not in them")
        if not context.trace.has("api_calls"):
            return RuleNotApplicable("the capture has no API calls: host activity is unknown")
        if steps:
            return _outside_steps(context)
        spans = _spans(context)
        if spans.total_ns < max(MIN_NS.value, MIN_SHARE.value * spans.capture_ns):
            return CLEAN
        return _match(context, spans)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the start, the end, and the calls that the finding names."""
        spans = _around_steps(context) if context.focus.steps else _spans(context)
        parts = [
            single_span(first, last, name)
            for first, last, name in (
                (spans.start_ns, spans.window_ns, "program start,"),
                (spans.last_ns, spans.end_ns, "program end,"),
            )
            if last > first
        ]
        window = (spans.start_ns, spans.end_ns)
        return pl.concat([*parts, host_events(context, finding.where, window)])


def _spans(context: RuleContext) -> _Spans:
    focus, schedule = context.focus, context.schedule
    devices = account(schedule, context.hosts)
    device = next(a for a in devices if a.device == context.device)
    last_ns = min(int(schedule.ops.end_ns.max()), focus.end_ns)
    if schedule.end_ns < focus.end_ns:  # the sample is a part of the window
        last_ns = focus.end_ns
    edges = np.array([schedule.start_ns, min(last_ns, schedule.end_ns), schedule.end_ns])
    working, ending = device.between(edges[:-1], edges[1:])
    setup = device.names.index(IdleCause.SETUP.entry)
    setup_ns = int(working[setup])
    explained_ns = {cause: int(ending[device.names.index(cause.entry)]) for cause in IdleCause}
    explained_ns[IdleCause.SETUP] += setup_ns
    return _Spans(
        focus.start_ns - focus.before_ns,
        focus.start_ns,
        last_ns,
        focus.end_ns,
        setup_ns,
        max(0, focus.end_ns - last_ns),
        explained_ns,
    )


def _around_steps(context: RuleContext) -> _Spans:
    """Return what lies before the first step and after the last, warm-up included in the steps."""
    focus = context.focus
    steps = (*focus.steps, *focus.left_out)
    process = steps[0].process
    work = of_process(launched(context.trace), process)
    whole = ResolvedSelection(context.trace).window
    first_ns, last_ns = min(s.start_ns for s in steps), max(s.end_ns for s in steps)
    outside = (pl.col("launch_ns") < first_ns) | (pl.col("launch_ns") >= last_ns)
    last_ns = max([last_ns, *work.filter(~outside)["end_ns"].sort().tail(1)])
    end_ns = max(last_ns, whole.end_ns)
    took_ns = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    copies = work.filter(outside, pl.col("table") == GPU_WORK.index("copies"))
    kinds = context.trace.table("copies", ["kind", "bytes", "src_kind", "dst_kind"])
    copies = pl.concat([copies, kinds[copies["row"]]], how="horizontal").with_columns(took_ns)
    copies = copies.filter(pl.col("kind").cast(pl.String).is_in(_HOST_COPIES))
    return _Spans(
        start_ns=min(first_ns, whole.start_ns),
        window_ns=first_ns,
        last_ns=last_ns,
        end_ns=end_ns,
        setup_ns=0,
        ending_ns=end_ns - last_ns,
        explained_ns={},
        copies=copies,
    )


def _outside_steps(context: RuleContext) -> RuleVerdict:
    spans = _around_steps(context)
    starts = spans.total_ns >= max(MIN_NS.value, MIN_FIRST_SHARE.value * spans.capture_ns)
    copy_ns = int(spans.copies["duration_ns"].sum())
    share = copy_ns / max(1, spans.capture_ns)
    copies = share >= MIN_COPY_SHARE.value and copy_ns >= MIN_NS.value
    if not starts and not copies:
        return CLEAN
    match = _match(context, spans)
    # Times of places are per step, which these are not.
    where = tuple(replace(place, ns=None, count=None) for place in match.where)
    match = replace(match, measured_ns=None, leads=False, where=where, also=())
    if not copies or (starts and 2 * copy_ns < spans.total_ns):
        return match
    return _copies_match(match, spans, share)


def _copies_match(match: RuleMatch, spans: _Spans, share: float) -> RuleMatch:
    """Word the match for copies that run once, which take this share of the capture."""
    copy_ns = int(spans.copies["duration_ns"].sum())
    early = spans.copies["launch_ns"] < spans.window_ns
    when = "before" if early.all() else "before and after" if early.any() else "after"
    rate = format_rate(int(spans.copies["bytes"].sum()) * 1e9 / max(1, copy_ns), digits=3)
    host = spans.copies.select(
        pl.any_horizontal(pl.col("src_kind", "dst_kind").cast(pl.String) == "Pageable").any()
    ).item()
    pinned = (
        " They are of pageable memory: pinned memory (cudaMallocHost, cudaHostRegister) is copied "
        "several times faster."
    )
    return replace(
        match,
        title=f"Copies {when} the steps: {format_time(copy_ns, digits=3)} of "
        f"{format_time(spans.capture_ns, digits=3)} ({format_share(share)})",
        evidence=(
            Evidence("copy_ns", float(copy_ns), "ns", "Copy time outside of the steps"),
            Evidence("copies", spans.copies.height, "", "H2D and D2H copies outside of the steps"),
            *match.evidence[:1],
            *match.evidence[2:3],
        ),
        leads=share >= MIN_FIRST_SHARE.value,
        fix=f"These copies run at {rate}, and no step shows them.{pinned if host else ''} "
        "Keep data on the GPU for as many steps as possible, and copy parts of it while others "
        "are computed. --window all shows them with the steps, and what the fix saves.",
        code="gpusight diagnose FILE --window all            # with the copies\n",
        why="Copies that run once are in no step, and nothing else runs on the GPU meanwhile.",
        verify="`gpusight copies --window all` shows fewer bytes, or a higher bandwidth.",
        effort="rewrite",
    )


def _match(context: RuleContext, spans: _Spans) -> RuleMatch:
    calls = _calls(context.trace, spans)
    share = spans.total_ns / max(1, spans.capture_ns)
    names = {
        "Start-up": spans.before_ns,
        "setup calls": spans.setup_ns,
        "program end": spans.ending_ns,
    }
    parts = [name for name, ns in names.items() if ns >= MIN_SHARE.value * spans.total_ns]
    times = {key: _union(calls.filter(pl.col("group") == key)).length_ns for key in _GROUPS}
    groups = dict(sorted(times.items(), key=lambda item: -item[1]))
    top, mostly = next(iter(groups)), ""
    if parts == ["setup calls"]:
        parts = [_GROUPS[top][0]]
    elif groups[top] >= MIN_FIRST_SHARE.value * spans.total_ns:
        mostly = f", mostly {_GROUPS[top][0]}"
    what = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    inside_ns = spans.setup_ns + spans.ending_ns
    in_calls_ns = _union(calls).length_ns
    main = [k for k, ns in list(groups.items())[:2] if ns >= MIN_SHARE.value * spans.total_ns]
    on_amd = calls["name"].str.starts_with("hip").any()
    advice = _ADVICE | _ADVICE_AMD if on_amd else _ADVICE
    sentences = [
        f"{format_time(groups[key], digits=3)} goes into {_GROUPS[key][0]}. {advice[key]}"
        for key in main
    ]
    rest_ns = spans.total_ns - in_calls_ns
    if rest_ns >= MIN_FIRST_SHARE.value * spans.total_ns:
        sentences.append(
            f"{format_time(rest_ns, digits=3)} is outside CUDA calls: imports, reading files, "
            "other host code, the end of the process."
        )
    first, last = (format_time(ns).replace(" ", "") for ns in (spans.window_ns, spans.last_ns))
    sentences.append(f"--window {first}-{last} selects the part in between.")
    return RuleMatch(
        title=f"{what[0].upper()}{what[1:]}: {format_time(spans.total_ns, digits=3)} of "
        f"{format_time(spans.capture_ns, digits=3)} ({format_share(share)}){mostly}",
        evidence=(
            Evidence("start_ns", float(spans.before_ns), "ns", "Start of the program, excluded"),
            Evidence("setup_ns", float(spans.setup_ns), "ns", "GPU idle in setup calls"),
            Evidence("end_ns", float(spans.ending_ns), "ns", "After the last GPU activity or step"),
            *(
                Evidence(key, float(ns), "ns", f"Host time: {_GROUPS[key][0]}")
                for key, ns in groups.items()
                if ns >= MIN_SHARE.value * spans.total_ns
            ),
            Evidence(
                "calls_ns",
                float(_union(calls).length_ns),
                "ns",
                "Host time in CUDA calls of the start, the setup and the end",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="measured, but most of it may be needed",
        measured_ns=float(inside_ns),
        explained_ns=spans.explained_ns,
        leads=share >= MIN_FIRST_SHARE.value,
        fix=" ".join(sentences),
        code=_code(main, spans, f"{first}-{last}", on_amd=on_amd),
        where=largest(summed_locations(calls, "call", "name")),
        also=("warmup-in-window",),
    )


_MIN_DELAY_NS = 2_000_000_000
"""Start-up from which on a recording can begin after it: profilers take delays in whole seconds."""


def _code(groups: Sequence[str], spans: _Spans, window: str, *, on_amd: bool) -> str:
    """Leave out lazy loading where it does not help: on AMD GPUs, or where no code is loaded."""
    loading = not on_amd and (not groups or not _LOADING.isdisjoint(groups))
    lines = [StartupBound.code.partition("\n")[0]] if loading else []
    if spans.before_ns >= _MIN_DELAY_NS:
        command = f"gpusight record --delay {spans.before_ns // 10**9} -- ./program"
        lines.append(f"{command:<46} # record without the start")
    else:
        lines.append(f"{f'gpusight ledger FILE --window {window}':<46} # the work alone")
    return "\n".join(lines) + "\n"


def _calls(trace: Trace, spans: _Spans) -> pl.DataFrame:
    """Return the calls of the start and the end, and those in between that set something up.

    Columns: `start_ns`, `end_ns`, `duration_ns`, `name`, `group` (a key of `_GROUPS`, or null).
    """
    calls = trace.table("api_calls", ["start_ns", "end_ns", "name", "thread"]).filter(
        pl.col("end_ns") > spans.start_ns, pl.col("start_ns") < spans.end_ns
    )
    names = names_of(calls["name"])
    groups = {
        code: next((key for key, (_, names) in _GROUPS.items() if names.search(name)), None)
        for code, name in enumerate(names)
    }
    group = pl.col("name").to_physical().replace_strict(groups, return_dtype=pl.String)
    took_ns = pl.col("end_ns") - pl.col("start_ns")
    calls = calls.with_columns(took_ns.alias("duration_ns"), group.alias("group"))
    calls = calls.with_columns(pl.col("name").cast(pl.String)).unique(maintain_order=True)
    # The time from the start of each graph capture to its end is one event.
    edges = calls.filter(pl.col("name").str.contains("Stream(?:Begin|End)Capture"))
    begins, ends = (pl.col("name").str.contains(edge) for edge in ("Begin", "End"))
    of_thread = edges.sort("start_ns").with_columns(
        pl.col("end_ns").shift(-1).over("thread"), ends.shift(-1).over("thread").alias("ends")
    )
    calls = pl.concat(
        [
            calls,
            of_thread.filter(begins, pl.col("ends")).select(
                "start_ns",
                "end_ns",
                pl.lit("graph capture").alias("name"),
                (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
                pl.lit(_GRAPHS).alias("group"),
            ),
        ],
        how="diagonal",
    )
    # The first allocation also creates the context, with the calls that it makes itself.
    memory = pl.col("group") == _MEMORY
    since_first_ns = pl.col("start_ns") - pl.col("start_ns").filter(memory).first()
    min_ns = MIN_CONTEXT_NS.value
    creates = memory & (took_ns > min_ns) & (since_first_ns < min_ns)
    loads = pl.col("name").str.contains("LaunchK") & (took_ns > MIN_LOADING_NS.value)
    calls = calls.with_columns(
        pl.when(creates)
        .then(pl.lit(_CONTEXT))
        .when(loads)
        .then(pl.lit(_CODE))
        .otherwise("group")
        .alias("group")
    )
    outside = (pl.col("start_ns") < spans.window_ns) | (pl.col("start_ns") >= spans.last_ns)
    sets_up = pl.col("group").is_not_null() & (pl.col("group") != _MEMORY)
    return calls.filter(outside | sets_up)


def _union(calls: pl.DataFrame) -> Intervals:
    return Intervals.from_arrays(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())


_ADVICE = {
    _CODE: "CUDA_MODULE_LOADING=LAZY loads only kernels that run; build for this GPU, so that no "
    "PTX is compiled.",
    "unloading_ns": "Let the exit of the process unload modules. "
    "CUDA_MODULE_LOADING=LAZY loads fewer.",
    _CONTEXT: "Keep the process alive for several runs; nvidia-persistenced keeps the driver "
    "loaded.",
    "handles_ns": "Create handles once, and keep them.",
    _GRAPHS: "Capture each graph once, and launch it often.",
    _MEMORY: "Allocate once, from a pool; let the exit of the process free memory.",
}
_ADVICE_AMD = {
    _CODE: "Build for this GPU, so that no code is compiled.",
    "unloading_ns": "Let the exit of the process unload modules.",
    _CONTEXT: "Keep the process alive for several runs.",
}
