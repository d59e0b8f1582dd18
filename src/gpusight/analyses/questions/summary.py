"""The answers of several captures side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.result import Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("passes", "Passes", Fmt.COUNT, "(a) Forward passes, without warm-up"),
    Field("host_ns", "Host", Fmt.TIME, "(a) Mean time of a pass on the host"),
    Field("complete_ns", "Complete", Fmt.TIME, "(a) The same until its GPU work is done"),
    Field("complete_stddev_ns", "StdDev", Fmt.TIME, "(a) Deviation of the latter", shown=False),
    Field("top_kernel", "Top kernel", Fmt.NAME, "(b) Kernel with most GPU time in a pass"),
    Field("top_launches", "Launches", Fmt.COUNT, "(b) Its launches in a pass"),
    Field("top_share", "Top share", Fmt.SHARE, "(b) Its part of a pass's kernel time"),
    Field("other_share", "No matmul", Fmt.SHARE, "(c) Kernel time of a pass in no matrix product"),
    Field("inference_matmul_share", "Matmul, pass", Fmt.SHARE, "(d) Matrix products, of a pass"),
    Field("training_matmul_share", "Matmul, step", Fmt.SHARE, "(d) Matrix products, of a step"),
    Field("time_ratio", "Softmax time", Fmt.REAL, "(e) Softmax against one product, time"),
    Field("flops_ratio", "Softmax FLOPs", Fmt.REAL, "(e) Softmax against one product, FLOPs"),
)
ANSWER_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("question", "Question", Fmt.TEXT, "Its letter"),
    Field("answer", "Answer", Fmt.TEXT, "In one sentence; or why there is none"),
    Field("answered", "Answered", Fmt.FLAG, "Whether there is one", shown=False),
)
SKIPPED_FIELDS = (
    Field("name", "File", Fmt.NAME, "What was not looked at"),
    Field("why", "Why", Fmt.TEXT, "Why not"),
)
FACTS = (
    Fact("captures_asked", "Captures", None, Fmt.COUNT, "Captures that were asked"),
    Fact("captures_failed", "Failed", None, Fmt.COUNT, "Captures that could not be read or asked"),
    Fact("files_skipped", "Skipped", None, Fmt.COUNT, "Files that are no captures"),
)
_PLACES: dict[str, tuple[str, ...]] = {
    "passes": ("a", "passes"),
    "host_ns": ("a", "host_ns"),
    "complete_ns": ("a", "complete_ns"),
    "complete_stddev_ns": ("a", "complete_stddev_ns"),
    "top_kernel": ("b", "forward", "kernel"),
    "top_launches": ("b", "forward", "launches"),
    "top_share": ("b", "forward", "share"),
    "other_share": ("c", "share"),
    "inference_matmul_share": ("d", "inference", "matmul"),
    "training_matmul_share": ("d", "training", "matmul"),
    "time_ratio": ("e", "time_ratio"),
    "flops_ratio": ("e", "flops_ratio"),
}
"""Where a number stands in the answers of one capture."""


def side_by_side(
    answers: Mapping[str, Composite | NotApplicable],
    skipped: Mapping[str, str],
    failed: Mapping[str, str],
) -> Composite:
    """Lay out the answers of captures by name, and what was skipped or failed with the reason."""
    found = {name: _answers(page) for name, page in answers.items()}
    sections = [
        _table("numbers", "Numbers", NUMBER_FIELDS, [_numbers(n, a) for n, a in found.items()]),
        _table(
            "answers", "Answers", ANSWER_FIELDS, [r for n, a in found.items() for r in _said(n, a)]
        ),
    ]
    for command, title, files in (
        ("failed", "Captures that failed", failed),
        ("skipped", "Not looked at", skipped),
    ):
        if files:
            rows = [{"name": name, "why": why} for name, why in files.items()]
            sections.append(_table(command, title, SKIPPED_FIELDS, rows))
    counts = (len(found), len(failed), len(skipped))
    return Composite(
        "questions",
        f"Five questions about {len(found):,} captures",
        tuple(replace(fact, value=n) for fact, n in zip(FACTS, counts, strict=True)),
        tuple(sections),
        meta={"captures": found},
    )


def _answers(page: Composite | NotApplicable) -> dict[str, Any]:
    """Give the answers by letter; of a capture that has none, why."""
    if isinstance(page, NotApplicable):
        return {"why": page.reason, "hint": page.hint}
    return dict(page.meta["answers"])


def _numbers(name: str, answers: dict[str, Any]) -> dict[str, Any]:
    return {"capture": name, **{key: _at(answers, place) for key, place in _PLACES.items()}}


def _at(answers: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        answers = answers.get(key) if isinstance(answers, dict) else None
    return answers


def _said(name: str, answers: dict[str, Any]) -> list[dict[str, Any]]:
    if "why" in answers:
        answers = {letter: {"answer": None, "why": answers["why"]} for letter in "abcde"}
    return [
        {
            "capture": name,
            "question": f"({letter})",
            "answer": said["answer"] or f"Not answered: {said['why']}.",
            "answered": said["answer"] is not None,
        }
        for letter, said in answers.items()
    ]


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[dict[str, Any]]
) -> TableResult:
    kinds: dict[Fmt, pl.DataType] = {
        Fmt.NAME: pl.String(),
        Fmt.TEXT: pl.String(),
        Fmt.FLAG: pl.Boolean(),
    }
    schema = {field.key: kinds.get(field.fmt, pl.Float64()) for field in fields}
    return TableResult(command, title, fields, pl.DataFrame(rows, schema=schema))
