"""What each operator of the framework costs: on the host, and on the GPU for what it launched.

Times in an operator itself, totals with what it called, and counts are those that PyTorch's own
`key_averages` prints (see `host_tree`). GPU work belongs to the operator that launched it (see
`attribution`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.attribution.work import WorkScope, selected_work
from gpusight.analyses.ops.fields import (
    fields_for,
    finished,
    has_gpu_work,
    how_to_record,
    title_for,
    work_meta,
    work_notes,
)
from gpusight.analyses.ops.host_tree import HostTree
from gpusight.analyses.ops.places import by_place
from gpusight.analyses.ops.sums import OpSums
from gpusight.analyses.ops.totals import printed_totals
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

BY = ("name", "shapes", "module", "call-site")
"""What rows can be grouped by."""
_OPERATORS = "operators are recorded by torch.profiler, with ProfilerActivity.CPU"


def ops(
    trace: Trace, selection: Selection = EVERYTHING, *, by: str = "name"
) -> TableResult | NotApplicable:
    """Sum up operators, those whose own GPU work took longest first.

    `by` also tells apart the `shapes` of their inputs, or groups GPU work by the `module` or the
    `call-site` in Python that caused it.
    """
    if by not in BY:
        raise UsageError(f"cannot group operators by {by!r}", hint=f"choose from: {', '.join(BY)}")
    if trace.has("op_totals") and not trace.has("cpu_ops"):
        return printed_totals(trace, selection, by)
    refused = _refusal(trace, by)
    if refused is not None:
        return refused
    scope = WorkScope(trace, selection)
    work = selected_work(scope)
    if by in ("module", "call-site"):
        return by_place(scope, work, by)
    gpu = has_gpu_work(trace)
    sums = OpSums(scope, HostTree.of(trace), work, shapes=by == "shapes")
    groups = sums.groups_of_work
    meta = work_meta(work, groups)
    return TableResult(
        "ops",
        title_for(by, gpu=gpu),
        fields_for(by, gpu=gpu),
        finished(sums.table(), work, groups, gpu=gpu),
        meta={**sums.meta, **meta},
        notes=(*scope.notes, *work.notes, *work_notes(meta, "operators and annotations")),
    )


def _refusal(trace: Trace, by: str) -> NotApplicable | None:
    """Explain why a capture cannot say what was asked for; None where it can."""
    if not trace.has("cpu_ops"):
        hint = how_to_record(trace, "cpu_ops") or _OPERATORS
        if trace.has("ranges"):
            hint = f"see what its ranges cost: gpusight ranges FILE; {hint}"
        return NotApplicable("ops", "the capture holds no operators of a framework", hint)
    if by == "shapes" and not trace.has("cpu_ops", "shapes"):
        reason = "the capture does not tell the shapes of operators' inputs"
        return NotApplicable("ops", reason, how_to_record(trace, "cpu_ops", "shapes"))
    return None
