"""host-sync: blocking synchronizations inside a step."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    NestedIntervals,
    is_frame,
    is_own_code,
    optional,
)
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import free_calls, remove, without_waiting
from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import called_from, is_training, largest, named, summed_locations
from gpusight.rules.locations import idle_gaps, of_calls, with_idle_gaps
from gpusight.rules.patterns.host_gaps import (
    MIN_COPY_WAIT_SHARE,
    at_most,
    host_unknown,
    idle_during,
    idle_ns,
    waits,
)
from gpusight.rules.patterns.memcpys import MIN_COPY_BYTES
from gpusight.rules.patterns.stack_lines import lines_in
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, Threshold, TimelineRule
from gpusight.trace.intervals import Intervals, coverage
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_COST_SHARE = Threshold(0.01, "share of the time that removing the syncs must save")
MIN_SYNCS_PER_STEP = Threshold(
    5,
    "syncs per step that are a finding at any cost: they keep the host from running ahead "
    "once other bottlenecks are fixed",
)
MIN_IDLE_SHARE = Threshold(
    0.1, "share of the time in which the GPU is idle during the syncs: a finding at any cost too"
)
MIN_READ_SHARE = Threshold(0.5, "share of the steps of a JAX program that read a value back")
MIN_READS = Threshold(10, "values that a JAX program reads back, where no steps are known")
_ISSUING = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)


class HostSync(TimelineRule):
    """Blocking synchronizations inside steps."""

    id = "host-sync"
    detects = (
        "Looks for calls inside a step that block until the GPU is done: readbacks (`.item()`, "
        "`.cpu()`, `nonzero`), small pageable copies, synchronization calls. A sync at the end of "
        "a step does not count. In JAX, for values that steps read back."
    )
    why = (
        "The host launches nothing while it is blocked. When it continues, the GPU queue is empty, "
        "and the GPU is idle until the next launch."
    )
    fix = "Keep values on the GPU, and read them back together after the step or every N steps."
    code = """\
losses.append(loss.detach())                   # no .item(), no print in the step
if step % 100 == 0:
    print(torch.stack(losses).mean().item())   # one sync per 100 steps
x = torch.where(mask, a, b)                    # instead of a[mask], nonzero, if tensor:
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
losses[step] = loss                            # stays on the GPU: no .get(), float(), print
if step % 100 == 0:
    print(float(losses[step - 99 : step + 1].mean()))   # one sync per 100 steps
y = cp.where(mask, a, b)                       # instead of a[mask]
""",
        Framework.NUMBA: """\
kernel[blocks, threads](x, result)             # result: a device array, stays on the GPU
if step % 100 == 0:
    print(result.copy_to_host())               # one sync per 100 steps
""",
        Framework.JULIA: """\
losses[step:step] .= loss                      # stays on the GPU: no Array(), no @show
step % 100 == 0 && println(Array(losses))      # one sync per 100 steps
""",
    }
    verify = (
        "`gpusight api` shows fewer synchronizing calls. In PyTorch, "
        'torch.cuda.set_sync_debug_mode("warn") reports the remaining ones.'
    )
    caveats = (
        "A program that needs the value to choose the next launch must synchronize. In a "
        "launch-bound program, syncs cost little until that is fixed."
    )
    estimate = (
        "Simulation in which these calls do not block, without the copies that read values back "
        "or move one number to the GPU. Where a flag of one byte is read (`isnan().any()`), the "
        "kernels that compute it go too. "
        "Host work on the values remains, but overlaps with the GPU. Syncs at the end of steps "
        "remain."
    )
    thresholds: ClassVar = {
        "min_cost_share": MIN_COST_SHARE,
        "min_syncs_per_step": MIN_SYNCS_PER_STEP,
        "min_idle_share": MIN_IDLE_SHARE,
        "min_copy_wait_share": MIN_COPY_WAIT_SHARE,
        "min_read_share": MIN_READ_SHARE,
        "min_reads": MIN_READS,
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the waits inside steps, and replay the window without them."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        small = waits(context).filter(~pl.col("large"))
        at_end = pl.col("at_edge") & ~pl.col("copies")
        inside, ends = small.filter(~at_end), small.filter(at_end)
        if context.framework is Framework.JAX and not inside["reads"].any():
            return _jax_readbacks(context)
        if inside.is_empty():
            return CLEAN
        change = _without_readbacks(context, inside)
        saved_ns = context.replay.run(*change).saved_ns
        costly = saved_ns >= MIN_COST_SHARE.value * context.length_ns
        many = context.steps > 0 and inside.height >= MIN_SYNCS_PER_STEP.value * context.steps
        measured_ns = idle_during(context, inside["calls"].explode().to_numpy())
        if not costly and not many and measured_ns < MIN_IDLE_SHARE.value * context.length_ns:
            return CLEAN
        match = _match(context, inside, ends, change, costly=costly)
        return replace(match, measured_ns=measured_ns)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find calls that wait for the GPU, with the gap that follows."""
        inside = waits(context).filter(~pl.col("large"), ~pl.col("at_edge") | pl.col("copies"))
        first = inside.select(pl.col("calls").list.first().alias("call"), "waited_ns")
        rows = context.calls.drop("waited_ns").join(first, on="call")
        calls = of_calls(context, rows, "operator", "name").with_columns(
            rows["waited_ns"].alias("weight_ns")
        )
        return with_idle_gaps(idle_gaps(context, tuple(IdleCause)), calls)


def _jax_readbacks(context: RuleContext) -> RuleVerdict:
    """Look for values that JAX reads back without any synchronizing call.

    Its threads copy, and a host function wakes the program up. Nothing is issued until then.
    """
    kinds = [kind.name.lower() for kind in _ISSUING]
    issued_ns = context.calls.filter(pl.col("kind").cast(pl.String).is_in(kinds))["start_ns"]
    calls = context.calls.select("call", pl.col("start_ns").alias("issued_ns"))
    copies = context.ops.filter(
        pl.col("direction") == "Device-to-Host", pl.col("bytes") < MIN_COPY_BYTES.value
    ).join(calls, on="call")
    following = np.append(np.sort(issued_ns.to_numpy()), context.schedule.end_ns)
    after = np.searchsorted(following[:-1], copies["issued_ns"].to_numpy(), side="right")
    rows = copies.filter(pl.Series(following[after] >= copies["end_ns"].to_numpy()))
    if rows.height < (MIN_READ_SHARE.value * context.steps or MIN_READS.value):
        return CLEAN
    # The value of the last step may be read after the window.
    count = rows.height + (rows.height == context.steps - 1)
    saved_ns = _serialized_ns(context, rows["end_ns"].to_numpy())
    if saved_ns < MIN_COST_SHARE.value * context.length_ns:
        return CLEAN
    return RuleMatch(
        title=context.count_per_step(count, "blocking readback"),
        evidence=(
            context.evidence("read_back", count, "", "Values read back"),
            context.evidence("serialized_ns", saved_ns, "ns", "Host or GPU time without overlap"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the capture does not show whether the values are needed at once",
        recoverable_ns=saved_ns,
        min_ns=at_most(context, idle_ns(context, *IdleCause)),
        measured_ns=saved_ns,
        estimate="After each readback, the host prepares the next step while the GPU is idle. "
        "Without it, both work at the same time: the shorter of the two is saved.",
        fix=f"Read back: {context.count_per_step(count, 'value')}, as float(loss) does. Host and "
        "GPU work in turns. Keep metrics on the GPU, and read them back every N steps. Keep "
        "the data on the GPU, or call jax.device_put for the next batch before the readback.",
        code=_JAX,
        where=largest(
            *called_from(context, rows).values(), summed_locations(rows, "kernel", "label")
        ),
    )


def _serialized_ns(context: RuleContext, ends_ns: Ints) -> float:
    """Sum the shorter of GPU time and idle time between readbacks: both could overlap."""
    schedule = context.schedule
    on_gpu = schedule.ops.device == context.device
    busy = Intervals.from_arrays(schedule.ops.start_ns[on_gpu], schedule.ops.end_ns[on_gpu])
    edges = np.unique(np.clip(ends_ns, schedule.start_ns, schedule.end_ns))
    busy_ns = coverage(busy, edges[:-1], edges[1:])
    if not len(busy_ns):
        return 0.0
    # The time before the first readback is like that between two.
    return float(np.minimum(busy_ns, np.diff(edges) - busy_ns).mean() * len(edges))


def _without_readbacks(context: RuleContext, inside: pl.DataFrame) -> tuple[Change, ...]:
    """Let these calls not block: values are not read back, single numbers are not copied."""
    awaited = inside.filter("copies")["last_call"]
    to_host = pl.col("direction") == "Device-to-Host"
    copies = context.ops.filter(
        pl.col("call").is_in(awaited.implode()),
        pl.col("bytes") <= pl.when(to_host).then(MIN_COPY_BYTES.value).otherwise(_NUMBER_BYTES),
    )
    calls = np.union1d(inside["calls"].explode().to_numpy(), copies["call"].to_numpy())
    syncs = calls[context.schedule.calls.kind[calls] == CallKind.SYNC]
    checks = _check_kernels(context, copies.filter(to_host))
    return (
        without_waiting(calls),
        free_calls(syncs),
        remove(np.union1d(copies["op"].to_numpy(), checks)),
    )


_NUMBER_BYTES = 8
"""One number, which can be an argument of a kernel instead of a tensor on the GPU."""
_FLAG_BYTES = 1
"""A boolean: what `if tensor:` and `tensor.any().item()` read."""
_CHECKS = r"^elementwise (?:compare|abs|logical|bitwise|is(?:nan|inf|finite))|^reduce (?:or|and)\b"
"""Kernels of a check for NaN, infinity or a bound: comparisons, and whether any or all is true."""
_FLAG_PRODUCT = r"^elementwise mul int"
"""`isfinite` multiplies two flags."""


def _check_kernels(context: RuleContext, copies: pl.DataFrame) -> Ints:
    """Return the kernels whose only result is a flag that is read back.

    They are the comparisons, the reductions of flags, and the memsets for these that its stream
    ran just before the copy, one after the other.
    """
    flags = copies.filter(pl.col("bytes") == _FLAG_BYTES)["op"].to_list()
    label = pl.col("label").cast(pl.String)
    is_check = label.str.contains(_CHECKS) | label.str.contains(_FLAG_PRODUCT)
    memset = pl.col("kind").cast(pl.String) == "memset"
    part = context.ops.select((is_check.fill_null(value=False) | memset).alias("part"))["part"]
    ops = context.schedule.ops
    order = np.lexsort((ops.start_ns, ops.stream_id))
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    # Nothing runs across from one stream to the next: the walk ends there.
    ends = ~part.to_numpy()[order]
    ends[np.flatnonzero(np.diff(ops.stream_id[order], prepend=-1))] = True
    last_end = np.maximum.accumulate(np.where(ends, np.arange(len(order)), -1))
    chains = [order[last_end[at - 1] + 1 : at] for at in positions[flags].tolist() if at > 0]
    return np.concatenate(chains) if chains else np.empty(0, np.int64)


def _match(
    context: RuleContext,
    inside: pl.DataFrame,
    ends: pl.DataFrame,
    change: tuple[Change, ...],
    *,
    costly: bool,
) -> RuleMatch:
    inside = _by_item(context, inside)
    where = largest(
        *called_from(context, inside, "waited_ns").values(),
        summed_locations(inside, "call", "name", "waited_ns"),
    )
    code = HostSync.code if is_training(context) else _INFERENCE
    firsts = inside["calls"].list.first().implode()
    library = library_behind(context, context.calls.filter(pl.col("call").is_in(firsts)))
    if library is not None:
        code = library.code or f"# the syncs are in {library.name}: see its options\n"
    evidence = [
        context.evidence("waits", inside.height, "", "Blocking syncs"),
        context.evidence(
            "waited_ns", int(inside["waited_ns"].sum()), "ns", "Host time blocked on the GPU"
        ),
        context.evidence(
            "read_back", int(inside["copies"].sum()), "", "Syncs on a small copy (readback)"
        ),
    ]
    if ends.height:
        meaning = "Syncs at the end of steps, not counted"
        evidence.append(context.evidence("at_step_end", ends.height, "", meaning))
    return RuleMatch(
        title=context.count_per_step(inside.height, "blocking sync"),
        evidence=tuple(evidence),
        confidence=Confidence.MEDIUM,
        confidence_reason="the capture does not show whether the values are needed at once",
        change=change,
        fix=_fix(context, inside, where, library, costly=costly),
        code=context.framework.choose(
            torch=code, cuda=_CUDA if inside["copies"].any() else _CUDA_IN_ORDER, jax=_JAX
        ),
        where=where,
        lines=lines_in(context, inside["calls"].explode().to_numpy()),
    )


def _fix(
    context: RuleContext,
    inside: pl.DataFrame,
    where: tuple[FindingLocation, ...],
    library: LibrarySyncs | None,
    *,
    costly: bool,
) -> str:
    source = named(where, "site", "operator") or named(where, "range") or named(where, "call")
    blocked_ns = float(inside["waited_ns"].sum())
    mean = format_time(blocked_ns / max(1, inside.height), digits=3)
    summary = f"The host is blocked {context.time_per_step(blocked_ns)}" + (
        f" in {source}" if source else ""
    )
    if library is not None:
        made = f"Most of these syncs are inside {library.name}: library code, not yours to change."
        return f"{summary}, {mean} per sync. {made} {library.advice}"
    compiled = " and torch.compile" * (not context.framework.is_array_language)
    now = f" It saves little alone, but CUDA graphs{compiled} need a step without syncs."
    way = context.framework.choose(
        torch="Collect values on the GPU and read them back once, after the step or every N "
        "steps. Copy small tensors from pinned memory with non_blocking=True. Replace boolean "
        "indexing and nonzero by torch.where.",
        cuda="Branch on the GPU (device-side flags, conditional graph nodes), or read results "
        "back through pinned memory and query an event in a later step."
        if inside["copies"].any()
        else "Nothing is read back: delete these calls. Kernels of one stream run in order, "
        "and cudaStreamWaitEvent orders streams without the host.",
        jax="Do not convert arrays to Python numbers or NumPy in the step. Read metrics back "
        "every N steps.",
        other="Keep values in arrays on the GPU, and read them back every N steps."
        if inside["copies"].any()
        else "Nothing is read back: delete these calls. Kernels of one stream run in order.",
    )
    return f"{summary}, {mean} per sync. {way}{now * (not costly)}"


def _by_item(context: RuleContext, inside: pl.DataFrame) -> pl.DataFrame:
    """Call readbacks `aten::item`, which programs call, where the capture has it too."""
    operators = names_of(context.trace.table("cpu_ops", ["name"])["name"])
    if "aten::item" not in operators:
        return inside
    operator = pl.col("operator").cast(pl.String)
    return inside.with_columns(operator.replace("aten::_local_scalar_dense", "aten::item"))


_INFERENCE = """\
outputs.append(output)                         # no .item(), .cpu() or print per step
results = torch.cat(outputs).cpu()             # one sync at the end
x = torch.where(mask, a, b)                    # instead of a[mask], nonzero, if tensor:
"""


_CUDA = """\
cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);  // pinned `host`
cudaEventRecord(ready, stream);
next_step<<<grid, block, 0, stream>>>();       // launched before the event is queried
if (cudaEventQuery(ready) == cudaSuccess) use(host);
"""
_CUDA_IN_ORDER = """\
produce<<<grid, block, 0, stream>>>(x);
consume<<<grid, block, 0, stream>>>(x);        // after `produce`, without cudaDeviceSynchronize
"""
_JAX = """\
metrics.append(value)                          # stays on the GPU
if step % 100 == 0:
    print(np.mean(jax.device_get(metrics)))    # one sync per 100 steps
"""


@dataclass(frozen=True, slots=True)
class LibrarySyncs:
    """A part of a library that synchronizes, and what its user can change."""

    pattern: str
    """Matches the Python frame, or the range that PyTorch opens around it."""
    name: str
    advice: str
    code: str = ""


_KNOWN = (
    LibrarySyncs(
        r"torch/optim/lbfgs\.py|Optimizer\.step#LBFGS\b",
        "torch.optim.LBFGS",
        "It reads the loss and the gradient back in each of its iterations. Use fewer iterations "
        "per step (max_iter, max_eval, no line search), or an optimizer that does not read back, "
        "such as AdamW.",
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)   # 20 is the default\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)   # or: no readbacks\n",
    ),
    LibrarySyncs(
        r"transformers/generation/",
        "generate() of transformers",
        "It reads back after each token whether all sequences have ended. Generate more sequences "
        "per call, or use an inference server that keeps that check off the critical path.",
        "inputs = tokenizer(prompts, padding=True, return_tensors='pt').to('cuda')\n"
        "outputs = model.generate(**inputs)  # all prompts: as many syncs as for one\n",
    ),
    LibrarySyncs(
        r"torch/(?:cuda/)?amp/grad_scaler\.py",
        "torch.amp.GradScaler",
        "It reads back once per step whether a gradient is infinite. BF16 needs no scaler.",
        'with torch.autocast("cuda", dtype=torch.bfloat16):   # instead of float16 and GradScaler\n'
        "    loss = loss_of(model(inputs), targets)\n",
    ),
    LibrarySyncs(
        r"torch/nn/utils/clip_grad\.py",
        "torch.nn.utils.clip_grad_norm_",
        "It reads the norm back with error_if_nonfinite=True, and where your code uses the norm.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)\n",
    ),
)
_OPTIMIZER = re.compile(
    r"Optimizer\.step#(\w+)\.step|torch/optim/(?!optimizer\.py|lr_scheduler)(\w+)\.py"
)
_PACKAGES = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?!torch/)([\w.]+?)/|^(transformers|accelerate|lightning"
    r"|pytorch_lightning|diffusers|deepspeed|timm|torchvision|torchaudio|torchmetrics|peft|trl)/"
)


def library_of(name: str) -> LibrarySyncs | None:
    """Return the library that a Python frame or a range is of; None for code of the program."""
    for known in _KNOWN:
        if re.search(known.pattern, name):
            return known
    if match := _OPTIMIZER.search(name):
        advice = "Use its fused form or capturable=True, and give it numbers as learning rates."
        return LibrarySyncs("", f"torch.optim.{match[1] or match[2]}", advice)
    if match := _PACKAGES.search(name.replace("\\", "/")):
        package = match[1] or match[2]
        advice = "Look for an option that turns it off, call it less often, or on larger inputs."
        return LibrarySyncs("", package, advice)
    return None


def library_behind(context: RuleContext, calls: pl.DataFrame) -> LibrarySyncs | None:
    """Return the library that makes most of these calls inside its own functions.

    The frame that decides is the innermost one of a library or of the program; without stacks, the
    range that PyTorch opens around a step of an optimizer. None where the capture shows neither.
    """
    times, threads = calls["start_ns"].to_numpy(), calls["thread"]
    names = pl.Series([None] * calls.height, dtype=pl.String)
    for table, test in (
        ("python_calls", lambda name: is_frame(name) and (library_of(name) or is_own_code(name))),
        ("ranges", lambda name: library_of(name) is not None),
    ):
        events = context.trace.table(table, ["start_ns", "end_ns", "name", "thread"])
        if events.is_empty():
            continue
        nested = NestedIntervals.of_table(events)
        place = nested.innermost(times, threads)
        nearest = np.append(nested.nearest(nested.marked(events["name"], test)), -1)[place]
        nearest_names = events["name"].gather(optional(nested.rows_at(nearest))).cast(pl.String)
        names = pl.select(pl.coalesce(names, nearest_names)).to_series()
    libraries = {name: library_of(name) for name in names.drop_nulls().unique()}
    makers = [libraries[name] for name in names if name is not None]
    counts = {maker: makers.count(maker) for maker in makers if maker is not None}
    most = max(counts, key=lambda maker: counts[maker], default=None)
    return most if most is not None and 2 * counts[most] > calls.height else None
