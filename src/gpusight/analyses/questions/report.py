"""The five questions, each with an answer of one sentence, its numbers and its tables.

(a) how long a forward pass takes, and whether wall-clock timings agree; (b) which kernel takes most
GPU time; (c) what goes to kernels that are no matrix products; (d) inference against training;
(e) softmax against the matrix products of attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight.analyses.kernels import no_kernels
from gpusight.analyses.questions.answer import listed
from gpusight.analyses.questions.attention import attention
from gpusight.analyses.questions.forward_time import forward_time
from gpusight.analyses.questions.kernels import other_kernels, top_kernels
from gpusight.analyses.questions.program import Program, label_of, program
from gpusight.analyses.questions.shares import shares
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.errors import UsageError
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
        absent = asked if trace.has("kernels") else no_kernels(trace, "questions")
        return replace(absent, command="questions")
    second: Program | None = None
    compared: list[str] = []
    if compare is not None:
        second, compared = _compared(compare, steps, warmup=warmup)
        compared += _only_first(label_of(compare), selection, windowed=window is not None)
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
    return _page(asked, compared, answers)


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
    asked: Program, compared: list[str], answers: dict[str, Answer | NotApplicable]
) -> Composite:
    sections: list[Any] = []
    notes = [*_plain(asked.trace), *asked.notes, *compared]
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


def _compared(
    compare: Trace, steps: str | None, *, warmup: bool
) -> tuple[Program | None, list[str]]:
    """Look at the second capture, None where nothing is in it; and what a reader must know."""
    label = label_of(compare)
    try:
        found = program(compare, steps=steps, warmup=warmup)
    except UsageError as error:
        raise UsageError(f"{label}: {error.what}", why=error.why, hint=error.hint) from error
    absent = found if compare.has("kernels") else no_kernels(compare, "questions")
    if isinstance(absent, NotApplicable):
        return None, [f"nothing to compare with: {absent.reason}"]
    return absent, [f"{label}: {note}" for note in absent.notes]


def _only_first(label: str, selection: Selection, *, windowed: bool) -> list[str]:
    """Say what was asked for that means nothing in another run: its times, GPUs and processes.

    Nor does a range: inside `forward` no capture trains.
    """
    asked = {
        "--in": selection.within is not None,
        "--device": selection.device is not None,
        "--process": selection.process is not None,
        "--window": windowed,
    }
    given = [option for option, here in asked.items() if here]
    chooses = "chooses" if len(given) == 1 else "choose"
    return [f"{label}: {listed(given)} {chooses} from the first capture only"] if given else []


def _said(answer: Answer | NotApplicable) -> str:
    return _BELOW if isinstance(answer, NotApplicable) else answer.sentence


def _document(name: str, answer: Answer | NotApplicable) -> dict[str, Any]:
    question = QUESTIONS[name][2]
    if isinstance(answer, NotApplicable):
        return {"question": question, "answer": None, "why": answer.reason, "hint": answer.hint}
    return {"question": question, "answer": answer.sentence, **answer.numbers}
