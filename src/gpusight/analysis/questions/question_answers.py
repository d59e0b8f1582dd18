"""The five questions about a capture, and the answers of several captures side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import table_of
from gpusight.analysis.kernel_summary import no_kernels
from gpusight.analysis.questions.attention_question import attention
from gpusight.analysis.questions.forward_time import forward_time
from gpusight.analysis.questions.kernel_questions import other_kernels, shares, top_kernels
from gpusight.analysis.questions.question_program import QuestionProgram, label_of, program
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable
from gpusight.units import join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.analysis.questions.attention_question import AttentionSizes
    from gpusight.analysis.questions.forward_time import WallClockTimings
    from gpusight.analysis.questions.question_program import QuestionAnswer
    from gpusight.trace.trace import Trace


QUESTIONS = {
    "forward_time": ("a", "(a) Forward pass", "How long does a forward pass take?"),
    "top_kernels": (
        "b",
        "(b) Top kernel",
        "Which kernel has the most GPU time in it, and how many launches?",
    ),
    "other_kernels": ("c", "(c) Not matmul", "Which other kernels than matmuls matter?"),
    "shares": ("d", "(d) Training", "How does training differ from inference?"),
    "attention": ("e", "(e) Attention", "How does softmax compare with attention's matmuls?"),
}
"""Section of the answer -> letter, label and the question itself."""
QUESTION_FACTS = tuple(
    Fact(f"answer_{letter}", label, None, Fmt.TEXT, f"{question} In one sentence")
    for letter, label, question in QUESTIONS.values()
)
_BELOW = "not answered, see below"


def questions(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    compare: Trace | None = None,
    timings: WallClockTimings | None = None,
    model: AttentionSizes | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Composite | NotApplicable:
    """Answer the five questions; those that the capture cannot answer say why.

    `compare` is a second capture: of the two, the one with a backward pass or an optimizer is
    training. `timings` are wall-clock times, `model` the sizes of attention.
    """
    has_kernels = trace.has("kernels")
    first = program(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(first, NotApplicable):
        return replace(first if has_kernels else no_kernels(trace, ""), command="questions")
    second: QuestionProgram | None = None
    compared: list[str] = []
    if compare is not None:
        second, compared = _compared(compare, steps, warmup=warmup)
        # These options mean nothing in another run; nor does a range: inside `forward` none trains.
        options = {
            "--in": selection.within,
            "--device": selection.device,
            "--process": selection.process,
            "--window": window,
        }
        used = [option for option, value in options.items() if value is not None]
        choose = "chooses" if len(used) == 1 else "choose"
        if used:
            only = f"{join_words(used)} {choose} from the first capture only"
            compared.append(f"{label_of(compare)}: {only}")
    ask: dict[str, Callable[[], QuestionAnswer | NotApplicable]] = {
        "forward_time": lambda: forward_time(first, timings),
        "top_kernels": lambda: top_kernels(first, second),
        "other_kernels": lambda: other_kernels(first),
        "shares": lambda: shares(first, second),
        "attention": lambda: attention(first, model),
    }
    answers = {
        name: answer() if has_kernels or name == "forward_time" else no_kernels(trace, name)
        for name, answer in ask.items()
    }
    unanswered = [answer for answer in answers.values() if isinstance(answer, NotApplicable)]
    if len(unanswered) == len(answers):
        return replace(unanswered[0] if has_kernels else no_kernels(trace, ""), command="questions")
    no_kernels_note = [] if has_kernels else [no_kernels(trace, "").reason]
    return _page([*no_kernels_note, *first.notes, *compared], answers, first.window)


def _page(
    notes: list[str], answers: dict[str, QuestionAnswer | NotApplicable], window: str
) -> Composite:
    sections: list[Any] = []
    facts: list[Fact] = []
    documents: dict[str, Any] = {}
    for fact, (name, answer) in zip(QUESTION_FACTS, answers.items(), strict=True):
        letter, _, question = QUESTIONS[name]
        if isinstance(answer, NotApplicable):
            sections.append(replace(answer, command=name))
            facts.append(replace(fact, value=_BELOW))
            numbers = {"answer": None, "why": answer.reason, "hint": answer.hint}
        else:
            first, *more = answer.tables
            sections += [replace(first, notes=answer.notes), *more]
            facts.append(replace(fact, value=answer.sentence))
            numbers = {"answer": answer.sentence, **answer.numbers}
        documents[letter] = {"question": question, **numbers}
    return Composite(
        "questions",
        "Five questions",
        tuple(facts),
        tuple(sections),
        meta={"answers": documents},
        notes=tuple(dict.fromkeys(notes)),
        window=window,
    )


def _compared(
    compare: Trace, steps: str | None, *, warmup: bool
) -> tuple[QuestionProgram | None, list[str]]:
    """Return the program of the second capture, None where it has none, and notes."""
    label = label_of(compare)
    try:
        second = program(compare, steps=steps, warmup=warmup)
    except UsageError as error:
        raise UsageError(f"{label}: {error.what}", why=error.why, hint=error.hint) from error
    if not compare.has("kernels"):
        second = no_kernels(compare, "questions")
    if isinstance(second, NotApplicable):
        return None, [f"nothing to compare with: {second.reason}"]
    return second, [f"{label}: {note}" for note in second.notes]


NUMBER_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("passes", "Passes", Fmt.COUNT, "(a) Forward passes, without warm-up"),
    Field("host_ns", "Host", Fmt.TIME, "(a) Mean time of a pass on the host"),
    Field("complete_ns", "Complete", Fmt.TIME, "(a) The same until its GPU work is done"),
    Field("complete_stddev_ns", "StdDev", Fmt.TIME, "(a) Deviation of the latter", shown=False),
    Field("top_kernel", "Top kernel", Fmt.NAME, "(b) Kernel with most GPU time in a pass"),
    Field("top_launches", "Launches", Fmt.COUNT, "(b) Its launches in a pass"),
    Field("top_share", "Top share", Fmt.SHARE, "(b) Its part of a pass's kernel time"),
    Field("other_share", "Not matmul", Fmt.SHARE, "(c) Kernel time of a pass outside matmuls"),
    Field("inference_matmul_share", "Matmul, pass", Fmt.SHARE, "(d) Matmuls, part of a pass"),
    Field("training_matmul_share", "Matmul, step", Fmt.SHARE, "(d) Matmuls, part of a step"),
    Field("time_ratio", "Softmax time", Fmt.REAL, "(e) Softmax vs. one matmul, time"),
    Field("flops_ratio", "Softmax FLOPs", Fmt.REAL, "(e) Softmax vs. one matmul, FLOPs"),
)
ANSWER_FIELDS = (
    Field("capture", "Capture", Fmt.NAME, "Which capture"),
    Field("question", "Question", Fmt.TEXT, "Its letter"),
    Field("answer", "Answer", Fmt.TEXT, "In one sentence; or why there is none"),
    Field("answered", "Answered", Fmt.FLAG, "Whether there is one", shown=False),
)
SKIPPED_FIELDS = (
    Field("name", "File", Fmt.NAME, "File that was skipped"),
    Field("why", "Why", Fmt.TEXT, "Why not"),
)
SIDE_BY_SIDE_FACTS = (
    Fact("captures_asked", "Captures", None, Fmt.COUNT, "Captures analyzed"),
    Fact(
        "captures_failed", "Failed", None, Fmt.COUNT, "Captures that could not be read or analyzed"
    ),
    Fact("files_skipped", "Skipped", None, Fmt.COUNT, "Files that are no captures"),
)
_PATHS: dict[str, tuple[str, ...]] = {
    **{key: ("a", key) for key in ("passes", "host_ns", "complete_ns", "complete_stddev_ns")},
    "top_kernel": ("b", "forward", "kernel"),
    "top_launches": ("b", "forward", "launches"),
    "top_share": ("b", "forward", "share"),
    "other_share": ("c", "share"),
    "inference_matmul_share": ("d", "inference", "matmul"),
    "training_matmul_share": ("d", "training", "matmul"),
    "time_ratio": ("e", "time_ratio"),
    "flops_ratio": ("e", "flops_ratio"),
}
"""Where the answers of one capture have each number."""


def side_by_side(
    answers: Mapping[str, Composite | NotApplicable],
    skipped: Mapping[str, str],
    failed: Mapping[str, str],
) -> Composite:
    """Lay out the answers of captures by name, and what was skipped or failed with the reason."""
    by_capture: dict[str, dict[str, Any]] = {}
    numbers, texts = [], []
    for name, page in answers.items():
        if isinstance(page, NotApplicable):
            by_capture[name] = {"why": page.reason, "hint": page.hint}
            own = {letter: {"answer": None, "why": page.reason} for letter in "abcde"}
        else:
            own = by_capture[name] = dict(page.meta["answers"])
        numbers.append(
            {"capture": name, **{key: _lookup(own, path) for key, path in _PATHS.items()}}
        )
        texts += [
            {
                "capture": name,
                "question": f"({letter})",
                "answer": answer["answer"] or f"Not answered: {answer['why']}.",
                "answered": answer["answer"] is not None,
            }
            for letter, answer in own.items()
        ]
    sections = [
        table_of("numbers", "Numbers", NUMBER_FIELDS, numbers, pl.Float64()),
        table_of("answers", "Answers", ANSWER_FIELDS, texts),
    ]
    for command, title, files in (
        ("failed", "Captures that failed", failed),
        ("skipped", "Skipped", skipped),
    ):
        if files:
            rows = [{"name": name, "why": why} for name, why in files.items()]
            sections.append(table_of(command, title, SKIPPED_FIELDS, rows))
    counts = (len(by_capture), len(failed), len(skipped))
    return Composite(
        "questions",
        f"Five questions about {len(by_capture):,} captures",
        tuple(replace(fact, value=n) for fact, n in zip(SIDE_BY_SIDE_FACTS, counts, strict=True)),
        tuple(sections),
        meta={"captures": by_capture},
    )


def _lookup(answers: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        answers = answers.get(key) if isinstance(answers, dict) else None
    return answers
