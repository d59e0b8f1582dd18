"""A comparison as plain objects, in base units; docs/json.md describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusight.comparison.outcome import (
        CallChange,
        Comparison,
        CopyChange,
        Entry,
        FindingChange,
        KernelChange,
        Side,
    )


def document(found: Comparison) -> dict[str, Any]:
    """Give the document that `--format json` writes; every part is there, empty or not."""
    return {
        "meta": _meta(found),
        "verdict": {"headline": found.headline.key, **_verdict(found)},
        "differences": [one.document() for one in found.differences],
        "explanation": list(found.explanation),
        "metrics": [
            {
                "metric": metric.key,
                "label": metric.label,
                **metric.change.document(),
                "missing": metric.missing or None,
            }
            for metric in found.metrics
        ],
        "ledger": [_entry(one) for one in found.ledger],
        "between": [_entry(one) for one in found.between],
        "phases": [{"phase": name, **change.document()} for name, change in found.phases],
        "kernels": [_kernel(row) for row in found.kernels],
        "ranges": [_call(row) for row in found.ranges],
        "api_calls": [_call(row) for row in found.api],
        "copies": [_copy(row) for row in found.copies],
        "findings": [_finding(row) for row in found.findings],
    }


def _meta(found: Comparison) -> dict[str, Any]:
    return {
        "command": found.command,
        "title": found.title,
        "before": _side(found.before),
        "after": _side(found.after),
        "confidence": found.confidence,
        "confidence_of_rows": round(found.of_rows, 6),
        "least_effect": found.least,
        **found.meta,
        "notes": list(found.notes),
    }


def _verdict(found: Comparison) -> dict[str, Any]:
    """Give both times that may decide."""
    times = ("step_time", "step_period")
    return {one.key: one.change.document() for one in found.metrics if one.key in times}


def _side(side: Side) -> dict[str, Any]:
    return {
        "labels": list(side.labels),
        "tools": list(side.tools),
        "gpus": list(side.gpus),
        "steps": list(side.steps),
        "step_ns": list(side.step_ns),
        "limit": side.limit,
        "busy_share": side.busy_share,
        "period_ns": list(side.period_ns),
    }


def _entry(one: Entry) -> dict[str, Any]:
    return {"entry": one.entry, "part": one.part, **one.change.document()}


def _kernel(row: KernelChange) -> dict[str, Any]:
    mean_before, mean_after = row.mean_ns
    return {
        "kernel": row.short,
        "category": row.category,
        "match": row.match.value,
        "before_names": list(row.before),
        "after_names": list(row.after),
        "ranges": list(row.ranges),
        **row.ns.document(),
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
        "mean_ns_before": mean_before,
        "mean_ns_after": mean_after,
    }


def _call(row: CallChange) -> dict[str, Any]:
    return {
        "name": row.name,
        **row.host_ns.document(),
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
        "gpu": None if row.gpu_ns is None else row.gpu_ns.document(),
    }


def _copy(row: CopyChange) -> dict[str, Any]:
    return {
        "operation": row.operation,
        "src_kind": row.src_kind,
        "dst_kind": row.dst_kind,
        **row.ns.document(),
        "bytes_before": row.bytes_before,
        "bytes_after": row.bytes_after,
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
    }


def _finding(row: FindingChange) -> dict[str, Any]:
    return {
        "rule": row.rule,
        "title": row.title,
        "fate": row.fate.value,
        "before_ns": row.before_ns,
        "after_ns": row.after_ns,
        "captures_before": row.captures_before,
        "captures_after": row.captures_after,
        "capture": row.capture,
    }
