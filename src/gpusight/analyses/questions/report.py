"""The five questions, each with an answer of one sentence, its numbers and its tables.

(a) how long a forward pass takes, and whether wall-clock timings agree; (b) which kernel takes most
GPU time; (c) what goes to kernels that are no matrix products; (d) inference against training;
(e) softmax against the matrix products of attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight.analyses.kernels import no_kernels
from gpusight.analyses.questions.attention import attention
from gpusight.analyses.questions.forward_time import forward_time
from gpusight.analyses.questions.kernels import other_kernels, top_kernels
from gpusight.analyses.questions.program import Program, program
from gpusight.analyses.questions.shares import shares
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.result import Composite, Fact, Fmt, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analyses.questions.answer import Answer
    from gpusight.analyses.questions.attention_flops import Sizes
    from gpusight.analyses.questions.timings import Timings
    from gpusight.model.trace import Trace

QUESTIONS = {
    "forward_time": ("a", "(a) Forward pass", "How long does a forward pass take?"),
    "top_kernels": ("b", "(b) Top kernel", "Which kernel takes most GPU time in it, how often?"),
    "other_kernels": ("c", "(c) No matmul", "Which kernels besides matrix products count?"),
    "shares": ("d", "(d) Training", "How does training differ from inference?"),
    "attention": ("e", "(e) Attention", "How does softmax compare with attention's products?"),
}
"""Section of the answer -> letter, label and the question itself."""
FACTS = tuple(
    Fact(f"answer_{letter}", label, None, Fmt.TEXT, f"{question} In one sentence")
    for letter, label, question in QUESTIONS.values()
)
_BELOW = "not answered, see below"


def questions(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    compare: Trace | None = None,
    timings: Timings | None = None,
    model: Sizes | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> Composite | NotApplicable:
    """Answer the five questions; those that the capture cannot answer say why.

    `compare` is a second capture: of the two, the one with a backward pass or an optimizer is
    training. `timings` are wall-clock times, `model` the sizes of attention.
    """
    asked = program(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(asked, NotApplicable):
        return no_kernels(trace, "questions") if not trace.has("kernels") else asked
    other = None if compare is None else program(compare)
    if isinstance(other, NotApplicable):
        other = None
    second = None if other is None or not compare or not compare.has("kernels") else other
    ask: dict[str, Callable[[], Answer | NotApplicable]] = {
        "forward_time": lambda: forward_time(asked, timings),
        "top_kernels": lambda: top_kernels(asked, second),
        "other_kernels": lambda: other_kernels(asked),
        "shares": lambda: shares(asked, second),
        "attention": lambda: attention(asked, model),
    }
    answers = {name: _kernels_first(trace, name) or put() for name, put in ask.items()}
    if all(isinstance(answer, NotApplicable) for answer in answers.values()):
        return _none(trace, answers)
    return _page(asked, compare, second, answers)


def _kernels_first(trace: Trace, name: str) -> NotApplicable | None:
    """Say of what needs kernels that there are none."""
    if name == "forward_time" or trace.has("kernels"):
        return None
    return no_kernels(trace, name)


def _none(trace: Trace, answers: dict[str, Answer | NotApplicable]) -> NotApplicable:
    first = next(a for a in answers.values() if isinstance(a, NotApplicable))
    absent = first if trace.has("kernels") else no_kernels(trace, "questions")
    return replace(absent, command="questions")


def _page(
    asked: Program,
    compare: Trace | None,
    second: Program | None,
    answers: dict[str, Answer | NotApplicable],
) -> Composite:
    sections: list[Any] = []
    notes = [*_plain(asked.trace), *asked.notes]
    if compare is not None:
        notes += _compared(compare, second)
    for name, answer in answers.items():
        if isinstance(answer, NotApplicable):
            sections.append(replace(answer, command=name))
        else:
            first, *more = answer.tables
            sections += [replace(first, notes=answer.notes), *more]
    return Composite(
        "questions",
        "Five questions",
        tuple(
            replace(fact, value=_said(answer))
            for fact, answer in zip(FACTS, answers.values(), strict=True)
        ),
        tuple(sections),
        meta={"answers": {QUESTIONS[n][0]: _document(n, a) for n, a in answers.items()}},
        notes=tuple(dict.fromkeys(notes)),
    )


def _plain(trace: Trace) -> list[str]:
    """State that a capture has no kernels, before anything else."""
    return [] if trace.has("kernels") else [no_kernels(trace, "questions").reason]


def _compared(compare: Trace, second: Program | None) -> list[str]:
    if second is None:
        return [f"nothing to compare with: {no_kernels(compare, 'questions').reason}"]
    return [f"{second.label}: {note}" for note in second.notes]


def _said(answer: Answer | NotApplicable) -> str:
    return _BELOW if isinstance(answer, NotApplicable) else answer.sentence


def _document(name: str, answer: Answer | NotApplicable) -> dict[str, Any]:
    question = QUESTIONS[name][2]
    if isinstance(answer, NotApplicable):
        return {"question": question, "answer": None, "why": answer.reason, "hint": answer.hint}
    return {"question": question, "answer": answer.sentence, **answer.numbers}
