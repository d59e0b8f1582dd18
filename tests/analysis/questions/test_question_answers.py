"""The five questions, asked of traces built by hand: every row that matters is here."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from gpusight.analysis.questions.attention_question import AttentionSizes
from gpusight.analysis.questions.forward_time import read_timings
from gpusight.analysis.questions.question_answers import questions
from gpusight.analysis.selection import Selection
from gpusight.errors import GpusightError, UsageError
from gpusight.readers.open import open_trace
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    needs_shared,
    opened,
)
from tests.shared import name as capture
from tests.traces import THREAD, Row, build_trace

GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma_kernel"
GEMM_2 = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_kernel"
SOFTMAX = "void softmax_warp_forward<float, float, float, 9, false, false>(float *)"
LOG_SOFTMAX = "void softmax_warp_forward<float, float, float, 9, true, false>(float *)"
SOFTMAX_BACKWARD = "void softmax_warp_backward<float, float, float, 9, false, false>(float *)"
LAYER_NORM = "void at::native::vectorized_layer_norm_kernel<float, float>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"
AUTOGRAD = 12


class Recorded:
    """Writes down ranges and launches as a program would make them."""

    def __init__(self, *, calls: bool = True) -> None:
        self.ranges: list[Row] = []
        self.calls: list[Row] = []
        self.kernels: list[Row] = []
        self._with_calls = calls

    def range(self, name: str, start: int, end: int) -> Recorded:
        self.ranges.append({"name": name, "start_ns": start, "end_ns": end})
        return self

    def launch(
        self, name: str, at: int, runs: tuple[int, int], thread: int = THREAD, **more: Any
    ) -> Recorded:
        number = len(self.kernels) + 1
        call = {"start_ns": at, "end_ns": at + 1, "thread": thread, "correlation": number}
        self.calls.append(call)
        start, end = runs
        row = {"name": name, "start_ns": start, "end_ns": end, "correlation": number, **more}
        self.kernels.append(row)
        return self

    def trace(self, **tables: Any) -> Trace:
        calls = {"api_calls": self.calls} if self._with_calls else {}
        given = {"ranges": self.ranges, "kernels": self.kernels, **calls, **tables}
        return build_trace(None, **{name: rows for name, rows in given.items() if rows})


def training() -> Recorded:
    """Warm-up and two steps: forward (GEMM twice, softmax), backward on autograd's thread, add."""
    made = Recorded().range("warm up", 0, 900)
    for number, begin in enumerate((0, 1000, 2000)):
        made.range(f"step_{number}", begin, begin + 900)
        made.range("Forward Pass", begin + 100, begin + 200 + 10 * number)
        made.range("backward", begin + 300, begin + 400)
        made.range("optimizer", begin + 500, begin + 600)
        made.launch(GEMM, begin + 110, (begin + 120, begin + 180))
        made.launch(SOFTMAX, begin + 120, (begin + 180, begin + 200))
        made.launch(GEMM, begin + 130, (begin + 210, begin + 290))
        made.launch(GEMM_2, begin + 310, (begin + 320, begin + 500), AUTOGRAD)
        made.launch(ADD, begin + 510, (begin + 520, begin + 540))
    return made


def page(trace: Trace, *args: Any, **options: Any) -> Composite:
    result = questions(trace, *args, **options)
    assert isinstance(result, Composite), result
    return result


def answers(trace: Trace, *args: Any, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page(trace, *args, **options).meta["answers"]
    return answer


def section(result: Composite, name: str) -> list[dict[str, Any]]:
    section = next(s for s in result.sections if s.command == name)
    assert isinstance(section, TableResult), section
    return section.rows()


# (a) ----------------------------------------------------------------------------------------------


def test_forward_time_is_of_passes_outside_warmup() -> None:
    result = page(training().trace())
    rows = section(result, "passes")
    assert [row["name"] for row in rows] == ["Forward Pass", "Forward Pass"]
    assert [row["host_ns"] for row in rows] == [110, 120]
    assert [row["complete_ns"] for row in rows] == [190, 190]
    assert [row["gpu_ns"] for row in rows] == [170, 170]
    assert [row["kernel_ns"] for row in rows] == [160, 160]
    answer = result.meta["answers"]["a"]
    assert (answer["host_ns"], answer["complete_ns"], answer["passes"]) == (115, 190, 2)
    assert answer["host_stddev_ns"] == pytest.approx(50**0.5)


def test_warmup_counts_when_asked_for() -> None:
    assert answers(training().trace(), warmup=True)["a"]["passes"] == 3


def test_all_passes_in_warmup_are_no_answer() -> None:
    made = Recorded().range("warmup", 0, 500).range("forward", 10, 100)
    made.launch(GEMM, 20, (30, 90)).launch(GEMM, 600, (610, 700))
    result = questions(made.trace())
    assert isinstance(result, NotApplicable)
    assert "warm-up" in result.reason


def test_wall_clock_is_compared() -> None:
    timings = read_timings("forward_ns\n200\n180\n", "t.csv")
    result = page(training().trace(), timings=timings)
    answer = result.meta["answers"]["a"]
    assert answer["wall_clock_ns"] == 190
    assert answer["wall_clock_against_complete"] == 0
    assert answer["wall_clock_against_host"] == pytest.approx(190 / 115 - 1)
    assert "it agrees" in answer["answer"]
    far = answers(training().trace(), timings=read_timings("forward_ns\n400\n", "t.csv"))
    assert "110.5% more" in far["a"]["answer"]
    assert "does not agree" in far["a"]["answer"]


def test_copies_of_a_pass_count_until_it_is_done() -> None:
    made = Recorded().range("forward", 0, 50).launch(GEMM, 10, (20, 60))
    copy = {"start_ns": 60, "end_ns": 95, "correlation": 9}
    made.calls.append({"start_ns": 20, "end_ns": 21, "correlation": 9, "name": "cudaMemcpyAsync"})
    answer = answers(made.trace(copies=[copy]))["a"]
    assert (answer["complete_ns"], answer["kernel_ns"]) == (95, 40)


def test_a_capture_without_kernels_tells_host_time_only() -> None:
    made = Recorded().range("forward", 0, 50).range("forward", 60, 120)
    made.calls.append({"start_ns": 10, "end_ns": 12, "correlation": 1})
    result = page(made.trace())
    assert result.notes[0] == "the capture has CUDA API calls but no kernels"
    assert result.meta["answers"]["a"]["host_ns"] == 55
    absent = {s.command: s for s in result.sections if isinstance(s, NotApplicable)}
    assert set(absent) == {"top_kernels", "other_kernels", "shares", "attention"}
    assert "WSL2" in absent["top_kernels"].hint


# (b), (c) -----------------------------------------------------------------------------------------


def test_top_kernels_are_per_pass() -> None:
    answer = answers(training().trace())["b"]
    forward, both, step = answer["forward"], answer["forward+backward"], answer["step"]
    assert (forward["name"], forward["pass_ns"], forward["launches"]) == (GEMM, 140, 2)
    assert forward["share"] == pytest.approx(140 / 160)
    assert (both["name"], both["pass_ns"], both["launches"]) == (GEMM_2, 180, 1)
    assert both["share"] == pytest.approx(180 / 340)
    assert step["share"] == pytest.approx(180 / 360)


def test_other_kernels_are_ranked() -> None:
    made = Recorded().range("forward", 0, 100)
    made.launch(GEMM, 1, (10, 60)).launch(ADD, 2, (60, 70)).launch(SOFTMAX, 3, (70, 100))
    result = page(made.trace())
    rows = section(result, "other_kernels")
    assert [row["category"] for row in rows] == ["softmax", "elementwise"]
    assert [row["share"] for row in rows] == pytest.approx([30 / 90, 10 / 90])
    assert result.meta["answers"]["c"]["matmul_share"] == pytest.approx(50 / 90)


def test_work_of_other_threads_belongs_to_the_open_range() -> None:
    made = Recorded().range("forward", 0, 100)
    made.launch(GEMM, 10, (20, 30)).launch(ADD, 20, (30, 80), thread=AUTOGRAD)
    assert answers(made.trace())["b"]["forward"]["name"] == ADD


def test_overlapping_passes_of_threads_hold_their_own_work() -> None:
    made = Recorded().range("forward", 0, 100).launch(GEMM, 50, (60, 70))
    made.ranges.append({"name": "forward", "start_ns": 40, "end_ns": 140, "thread": AUTOGRAD})
    made.launch(GEMM, 60, (70, 80), AUTOGRAD).launch(GEMM, 110, (120, 130), AUTOGRAD)
    assert [row["launches"] for row in section(page(made.trace()), "passes")] == [1, 2]


def test_without_calls_the_kernels_own_start_decides() -> None:
    made = Recorded(calls=False).range("forward", 0, 100).launch(GEMM, 0, (50, 60))
    made.launch(GEMM, 0, (150, 190))
    result = page(made.trace())
    assert section(result, "passes")[0]["launches"] == 1
    assert any("no API calls" in note for note in result.notes)


def test_inner_forward_ranges_are_no_passes_of_their_own() -> None:
    made = Recorded().range("## forward ##", 0, 100).range("DistributedDataParallel.forward", 5, 95)
    made.range("attn_forward", 10, 20).launch(GEMM, 12, (30, 60))
    result = page(made.trace())
    assert [row["name"] for row in section(result, "passes")] == ["## forward ##"]


# (d) ----------------------------------------------------------------------------------------------


def test_shares_of_one_capture() -> None:
    answer = answers(training().trace())["d"]
    assert answer["inference"]["matmul"] == pytest.approx(140 / 160)
    assert answer["training"]["matmul"] == pytest.approx(320 / 360)
    # The optimizer's kernels are the optimizer's, whatever they do.
    assert answer["training"]["optimizer"] == pytest.approx(20 / 360)
    assert sum(answer["training"].values()) == pytest.approx(1)
    assert sum(answer["inference"].values()) == pytest.approx(1)


def inference() -> Recorded:
    made = Recorded().range("forward", 0, 100)
    return made.launch(GEMM, 10, (20, 50)).launch(LAYER_NORM, 20, (50, 60))


@pytest.mark.parametrize("trained_first", [True, False])
def test_of_two_captures_the_one_that_trains_is_training(*, trained_first: bool) -> None:
    captures = [training().trace(), inference().trace()]
    first, second = captures if trained_first else captures[::-1]
    answer = answers(first, compare=second)["d"]
    assert answer["inference"]["softmax and normalization"] == pytest.approx(10 / 40)
    assert answer["training"]["matmul"] == pytest.approx(320 / 360)


def test_a_forward_pass_takes_the_rest_from_the_other_capture() -> None:
    answer = answers(inference().trace(), compare=training().trace())["b"]
    assert answer["forward"]["pass_ns"] == 30
    assert answer["forward+backward"]["name"] == GEMM_2


def test_inference_alone_cannot_be_compared() -> None:
    answer = answers(inference().trace())["d"]
    assert answer["answer"] is None
    assert "--compare" in answer["hint"]


# (e) ----------------------------------------------------------------------------------------------


def attending(*names: str) -> Recorded:
    made = Recorded().range("forward", 0, 1000)
    for begin in (0, 500):
        for at, name in zip((10, 30, 50), names, strict=True):
            made.range(name, begin + at, begin + at + 10)
        made.launch(GEMM, begin + 11, (begin + 100, begin + 140))
        made.launch(ADD, begin + 12, (begin + 140, begin + 150))
        made.launch(SOFTMAX, begin + 31, (begin + 150, begin + 180))
        made.launch(GEMM_2, begin + 51, (begin + 180, begin + 200))
    return made


@pytest.mark.parametrize(
    "names",
    [
        ("computing_attention_scores", "computing_softmax", "final_matmul"),
        ("computing attention scores", "Computing Softmax", "final matmul"),
        ("QK^T", "softmax", "attn @ V"),
        ("x", "y", "z"),
    ],
)
def test_attention_by_ranges_or_by_the_order_of_kernels(names: tuple[str, ...]) -> None:
    result = page(attending(*names).trace(), model=AttentionSizes.of("4,12,512,64"))
    rows = {row["part"]: row for row in section(result, "attention")}
    assert {part: row["call_ns"] for part, row in rows.items()} == {
        "scores": 40,
        "softmax": 30,
        "final": 20,
        "around": None,
    }
    assert rows["around"]["pass_ns"] == 20
    assert rows["scores"]["range_ns"] == (None if names[0] == "x" else 50)
    assert {part: row["calls"] for part, row in rows.items()}["scores"] == 2
    assert rows["scores"]["flops"] == rows["final"]["flops"] == 1_610_612_736
    assert rows["softmax"]["flops"] == 62_914_560
    answer = result.meta["answers"]["e"]
    assert answer["time_ratio"] == 1
    assert answer["flops_ratio"] == pytest.approx(1 / 25.6)
    assert "1/25.6" in answer["answer"]


def test_without_sizes_flops_are_not_known() -> None:
    result = page(attending("x", "y", "z").trace())
    assert result.meta["answers"]["e"]["flops_ratio"] is None
    notes = next(s for s in result.sections if s.command == "attention").notes  # type: ignore[union-attr]
    assert any("--model" in note for note in notes)


def test_sizes_that_were_recorded_count() -> None:
    shapes = {
        "aten::bmm": "[[8, 128, 64], [8, 64, 128]]",
        "aten::_softmax": "[[2, 4, 128, 128], [], []]",
    }
    names = ("aten::bmm", "aten::_softmax", "aten::bmm")
    ops = [
        {
            "op": key,
            "name": name,
            "start_ns": 10 * key,
            "end_ns": 10 * key + 5,
            "shapes": shapes[name],
            "types": '["float", "float"]',
        }
        for key, name in enumerate(names)
    ]
    made = Recorded().range("forward", 0, 100)
    for key, name in enumerate((GEMM, SOFTMAX, GEMM_2)):
        runs = (100 + 10 * key, 110 + 10 * key)
        made.launch(name, 10 * key + 1, runs, op=key)
    answer = answers(made.trace(cpu_ops=ops), model=AttentionSizes.of("4,12,512,64"))["e"]
    assert answer["scores_flops"] == answer["final_flops"] == 2 * 8 * 128 * 128 * 64
    assert answer["softmax_flops"] == 5 * 2 * 4 * 128 * 128


def test_a_loss_is_no_attention() -> None:
    made = Recorded().range("forward", 0, 100)
    for at, name in enumerate((GEMM, LOG_SOFTMAX, GEMM, GEMM, SOFTMAX_BACKWARD, GEMM)):
        made.launch(name, at, (10 * at + 10, 10 * at + 20))
    assert answers(made.trace())["e"]["answer"] is None


def test_norms_end_attention() -> None:
    made = Recorded().range("forward", 0, 100)
    for at, name in enumerate((GEMM, LAYER_NORM, SOFTMAX, GEMM)):
        made.launch(name, at, (10 * at + 10, 10 * at + 20))
    answer = answers(made.trace())["e"]
    assert answer["answer"] is None
    assert "computing attention scores" in answer["hint"]


def test_fused_attention_is_one_kernel() -> None:
    made = Recorded().range("forward", 0, 100)
    made.launch(FLASH, 1, (10, 30)).launch(FLASH, 2, (30, 50)).launch(GEMM, 3, (50, 60))
    answer = answers(made.trace(), model=AttentionSizes.of("1,2,16,8"))["e"]
    assert (answer["part"], answer["calls"], answer["call_ns"]) == ("fused", 2, 20)
    assert answer["flops"] == 4 * 1 * 2 * 16 * 16 * 8
    assert "one fused kernel" in answer["answer"]


@pytest.mark.parametrize("text", ["4,12,512", "a,b,c,d", "0,1,1,1", "", "1,2,3,4,5"])
def test_sizes_must_be_four_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="sizes of a model"):
        AttentionSizes.of(text)


# Without ranges -----------------------------------------------------------------------------------


def test_steps_of_inference_are_passes() -> None:
    made = Recorded()
    for number in range(3):
        begin = 1000 * number
        made.range(f"step_{number}", begin, begin + 500)
        made.launch(GEMM, begin + 10, (begin + 20, begin + 50))
    all_answers = answers(made.trace())
    assert all_answers["a"]["passes"] == 3
    assert all_answers["b"]["forward"]["launches"] == 1


def test_a_range_asked_for_is_a_pass() -> None:
    made = (
        Recorded().range("start", 0, 100).launch(GEMM, 10, (20, 50)).launch(GEMM, 200, (210, 300))
    )
    assert isinstance(questions(made.trace()), NotApplicable)
    all_answers = answers(made.trace(), Selection(within="start"))
    assert (all_answers["a"]["passes"], all_answers["b"]["forward"]["pass_ns"]) == (1, 30)


def test_programs_without_a_network_have_no_passes() -> None:
    made = Recorded()
    for number in range(4):
        made.range(f"step_{number}", 1000 * number, 1000 * number + 500)
        made.launch("stencil_kernel(float *)", 1000 * number + 10, (20, 50))
    result = questions(made.trace())
    assert isinstance(result, NotApplicable)
    assert "neural network" in result.reason


def test_nothing_at_all() -> None:
    result = questions(build_trace(None))
    assert isinstance(result, NotApplicable)
    assert "no GPU kernels" in result.reason


def test_of_several_processes_the_one_looked_at_counts() -> None:
    made = training()
    other = [{**row, "process": 2, "thread": 21} for row in made.ranges]
    calls = [{**row, "process": 2, "thread": 21} for row in made.calls]
    kernels = [{**row, "process": 2, "end_ns": row["end_ns"] - 5} for row in made.kernels]
    trace = build_trace(
        None,
        ranges=[*made.ranges, *other],
        api_calls=[*made.calls, *calls],
        kernels=[*made.kernels, *kernels],
    )
    all_answers = answers(trace)
    assert all_answers["a"]["passes"] == 2
    assert all_answers["b"]["forward+backward"]["launches"] == 1


def test_a_range_that_launches_nothing_leaves_attention_untold() -> None:
    """Its passes are known by their ranges, but no kernel is theirs."""
    trace = Recorded().range("forward", 0, 10).launch(GEMM, 20, (25, 30)).trace()
    page = questions(trace)
    assert isinstance(page, Composite)
    answer = page.meta["answers"]["e"]
    assert answer["answer"] is None
    assert answer["why"] == "not applicable: no kernel was launched inside a forward pass"
    absent = questions(Recorded().launch(GEMM, 20, (25, 30)).trace(), window=(26, 28))
    assert isinstance(absent, NotApplicable)
    assert absent.command == "questions"


def test_a_capture_where_nothing_takes_time_is_told_by_the_command_asked() -> None:
    result = questions(build_trace(kernels=[{"start_ns": 0, "end_ns": 0, "name": "k"}]))
    assert isinstance(result, NotApplicable)
    assert result.command == "questions"


@pytest.mark.parametrize("text", ["1099511627775," * 3 + "1099511627775", "1,1,2000000000,1"])
def test_sizes_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="beyond 64 bits"):
        AttentionSizes.of(text)


def test_of_several_processes_without_steps_the_busiest_is_looked_at() -> None:
    """Both call their passes forward, at the same time; the second has more GPU work."""
    rows: dict[str, list[Row]] = {"ranges": [], "api_calls": [], "kernels": []}
    for process, length, name in ((1, 10, GEMM), (2, 30, GEMM_2)):
        own = {"process": process, "thread": process}
        rows["ranges"].append({"name": "forward", "start_ns": 0, "end_ns": 9, **own})
        rows["api_calls"].append({"start_ns": 5, "end_ns": 6, "correlation": 1, **own})
        rows["kernels"].append(
            {"name": name, "start_ns": 10, "end_ns": 10 + length, "correlation": 1,
             "process": process}
        )  # fmt: skip
    page = questions(build_trace(None, **rows))
    assert isinstance(page, Composite)
    assert "answers are of process 2, the one of 2 with the most GPU work" in page.notes
    assert page.meta["answers"]["a"]["passes"] == 1
    assert page.meta["answers"]["b"]["forward"]["total_ns"] == 30


def test_steps_choose_of_both_captures_and_the_rest_only_of_the_first() -> None:
    page = questions(training().trace(), Selection(device=0), compare=training().trace(), steps="1")
    assert isinstance(page, Composite)
    assert any(note.endswith("--device chooses from the first capture only") for note in page.notes)
    two = Recorded().range("step_7", 0, 50).launch(GEMM, 5, (10, 20))
    two.range("step_8", 60, 110).launch(GEMM, 65, (70, 80))
    with pytest.raises(UsageError, match=r"no step is in '1'.*numbered 7 to 8"):
        questions(training().trace(), compare=two.trace(), steps="1")


# The five questions on real captures; the figures come from SQL over the captures themselves.


GPT = AttentionSizes.of("4,12,512,64")
Kernel = tuple[int, int, str, int]
"""Begin, end, name and when its launch began."""


def answers_about(path: Path, **options: Any) -> dict[str, Any]:
    other = options.pop("compare", None)
    if other is not None:
        options["compare"] = open_trace(other, cache=False)
    result = questions(opened(path), **options)
    assert isinstance(result, Composite), result
    answer: dict[str, Any] = result.meta["answers"]
    return answer


def recorded(path: Path) -> tuple[dict[str, list[tuple[int, int]]], list[Kernel]]:
    """Read ranges by name, and kernels, from an SQLite export."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as base:
        ranges: dict[str, list[tuple[int, int]]] = {}
        for name, start, end in base.execute(
            "SELECT coalesce(n.text, s.value), n.start, n.end FROM NVTX_EVENTS n"
            " LEFT JOIN StringIds s ON s.id = n.textId"
            " WHERE n.eventType = 59 AND n.end IS NOT NULL ORDER BY n.start"
        ):
            ranges.setdefault(name, []).append((start, end))
        kernels = base.execute(
            "SELECT k.start, k.end, s.value, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.demangledName"
            " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
        ).fetchall()
    return ranges, kernels


def inside(kernels: list[Kernel], spans: list[tuple[int, int]]) -> list[list[Kernel]]:
    return [[k for k in kernels if start <= k[3] < end] for start, end in spans]


def spent(kernels: list[Kernel]) -> int:
    return sum(end - start for start, end, *_ in kernels)


def flat(parts: list[list[Kernel]]) -> list[Kernel]:
    return [kernel for part in parts for kernel in part]


def top(kernels: list[Kernel], count: int) -> tuple[str, float, float]:
    """Name the kernel with most time; its time and launches in one of `count` passes."""
    times, calls = Counter[str](), Counter[str]()
    for start, end, name, _ in kernels:
        times[name] += end - start
        calls[name] += 1
    name, most = times.most_common(1)[0]
    return name, most / count, calls[name] / count


def check_forward(path: Path) -> None:
    all_answers = answers_about(path, model=GPT)
    ranges, kernels = recorded(path)
    passes = ranges["forward"]
    each = inside(kernels, passes)
    host = [end - start for start, end in passes]
    done = [max(e, max(k[1] for k in p)) - s for (s, e), p in zip(passes, each, strict=True)]
    assert all_answers["a"]["passes"] == len(passes)
    assert all_answers["a"]["host_ns"] == pytest.approx(fmean(host))
    assert all_answers["a"]["host_stddev_ns"] == pytest.approx(stdev(host))
    assert all_answers["a"]["complete_ns"] == pytest.approx(fmean(done))
    name, time, launches = top(flat(each), len(passes))
    forward = all_answers["b"]["forward"]
    assert forward["name"] == name
    assert (forward["pass_ns"], forward["launches"]) == pytest.approx((time, launches))
    products = [k for k in flat(each) if "gemm" in k[2] or "splitK" in k[2]]
    assert all_answers["c"]["matmul_share"] == pytest.approx(spent(products) / spent(flat(each)))
    for part, range_ in (("softmax", "computing_softmax"), ("final", "final_matmul")):
        of_part = flat(inside(kernels, ranges[range_]))
        own = [k for k in of_part if part == "softmax" or "gemm" in k[2]]
        assert all_answers["e"][f"{part}_calls"] == len(ranges[range_]) / len(passes)
        assert all_answers["e"][f"{part}_call_ns"] == pytest.approx(
            spent(own) / len(ranges[range_])
        )
    assert all_answers["e"]["scores_flops"] == 1_610_612_736
    assert all_answers["e"]["flops_ratio"] == pytest.approx(1 / 25.6)


def test_a_forward_capture_equals_what_sql_says() -> None:
    check_forward(DATA / "gpt_small_forward.sqlite")


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_fwdbwd", "gpt_small_train"])
def test_training_captures_equal_what_sql_says(name: str) -> None:
    path = SHARED / "nsys" / f"{name}.sqlite"
    check_forward(path)
    all_answers = answers_about(path)
    ranges, kernels = recorded(path)
    passes = len(ranges["forward"])
    both = flat(inside(kernels, [*ranges["forward"], *ranges["backward"]]))
    name_, time, launches = top(both, passes)
    result = all_answers["b"]["forward+backward"]
    assert result["name"] == name_
    assert (result["pass_ns"], result["launches"]) == pytest.approx((time, launches))
    steps = flat(inside(kernels, [ranges[n][0] for n in ranges if n.startswith("step_")]))
    optimizer = flat(inside(kernels, ranges.get("optimizer", [])))
    assert all_answers["d"]["training"]["optimizer"] == pytest.approx(
        spent(optimizer) / spent(steps)
    )


def test_the_trace_of_the_same_program_says_the_same() -> None:
    """Without ranges: passes from the repetition of kernels, FLOPs from recorded sizes."""
    nsys = answers_about(DATA / "gpt_small_forward.sqlite", model=GPT)
    torch = answers_about(DATA / "gpt_small_forward.json.gz")
    assert torch["a"]["passes"] == nsys["a"]["passes"] == 3
    assert torch["b"]["forward"]["launches"] == nsys["b"]["forward"]["launches"] == 24
    assert torch["b"]["forward"]["pass_ns"] == pytest.approx(
        nsys["b"]["forward"]["pass_ns"], rel=0.01
    )
    assert torch["c"]["share"] == pytest.approx(nsys["c"]["share"], rel=0.01)
    for key in ("scores_flops", "softmax_flops", "final_flops", "scores_calls"):
        assert torch["e"][key] == nsys["e"][key]
    assert torch["e"]["time_ratio"] == pytest.approx(nsys["e"]["time_ratio"], rel=0.05)


@needs_shared
def test_training_without_ranges_is_told_by_autograd() -> None:
    nsys = answers_about(SHARED / "nsys" / "gpt_small_train.sqlite")
    torch = answers_about(SHARED / "torch" / "gpt_small_train.json.gz")
    for part, launches in (("forward", 24), ("forward+backward", 48), ("step", 48)):
        assert torch["b"][part]["launches"] == nsys["b"][part]["launches"] == launches
    for side in ("inference", "training"):
        for group, share in nsys["d"][side].items():
            assert torch["d"][side][group] == pytest.approx(share, abs=0.005)


@needs_shared
def test_what_autograd_launches_is_no_forward_pass() -> None:
    """An old trace, whose operators on autograd's thread are numbered like forward ones."""
    (path,) = (SHARED / "public" / "torch").glob("kineto__tb_plugin*num_workers_0*")
    all_answers = answers_about(path, steps="all")
    assert all_answers["a"]["passes"] == 6
    assert all_answers["b"]["forward+backward"]["name"] != all_answers["b"]["forward"]["name"]


@needs_shared
def test_forward_against_training() -> None:
    folder = SHARED / "nsys"
    forward, train = folder / "gpt_small_forward.sqlite", folder / "gpt_small_train.sqlite"
    answer = answers_about(forward, compare=train)["d"]
    assert answer == answers_about(train, compare=forward)["d"]
    assert answer["inference"]["matmul"] == pytest.approx(0.8371, abs=1e-4)
    assert answer["training"]["matmul"] == pytest.approx(0.7872, abs=1e-4)
    assert (answer["inference"]["optimizer"], answer["training"]["optimizer"]) == (
        0,
        pytest.approx(0.0714, abs=1e-4),
    )


@needs_shared
@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE], ids=capture)
def test_every_capture_answers_or_says_why(path: Path) -> None:
    try:
        result = questions(opened(path))
    except GpusightError:
        return
    text = to_plain(result, TableOptions(width=80, limit=20))
    assert max(map(len, text.splitlines())) <= 80
    if isinstance(result, NotApplicable):
        assert result.reason
        return
    shares = result.meta["answers"]["d"]
    for side in ("inference", "training"):
        if shares["answer"]:
            assert sum(shares[side].values()) == pytest.approx(1)
    for answer in result.meta["answers"].values():
        assert answer["answer"] or answer["why"]
