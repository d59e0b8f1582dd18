"""Whole captures with a known defect come out as they truly are."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.render.diagnosis_summary import diagnosis_head, timeline_gain
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.rules.timeline.gpu_traces import ADD, GEMM, program
from tests.rules.timeline.rule_captures import diagnosed_file
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
    opened,
)

NSYS = SHARED / "nsys"
TORCH = SHARED / "torch"
HOST = {"launch-bound"}
FIRST = {
    "dataload": {"input-starved"},
    "tiny": {"launch-bound", "elementwise-chain"},
    "pageable": {"pageable-copy", "exposed-copy"},
    "gpt_small_forward": {"fp32-no-tensor-cores"},
    "gpt_small_fwdbwd": {"fp32-no-tensor-cores"},
    "gpt_small_train": {"unfused-optimizer", "elementwise-chain", "launch-bound"},
    "gpt_small_train_bf16_fused": HOST,
    "conv": HOST,
    # Its launches take more time, but a CUDA graph needs the syncs gone.
    "item": {"host-sync"},
    **{f"gpt_tiny_train_{kind}r{n}": HOST for kind in ("", "tf32_") for n in (1, 2, 3)},
}
"""What must be the first finding of an nsys capture."""
FOUND = {
    "gpt_small_forward": "unfused-attention",
    "gpt_small_fwdbwd": "unfused-attention",
    "gpt_small_train": "fp32-no-tensor-cores",
    "conv": "layout-transpose",
    "item": "launch-bound",
}
STEP_MS = {
    ("dataload", "input-starved"): (12.5, 2.4),
    ("tiny", "launch-bound"): (11.9, 1.2),
    ("conv", "launch-bound"): (12.8, 7.7),
    ("gpt_small_forward", "fp32-no-tensor-cores"): (14.3, 8.4),
    ("gpt_small_fwdbwd", "fp32-no-tensor-cores"): (42.5, 34.9),
    ("gpt_small_train", "unfused-optimizer"): (46.9, 40.5),
    ("gpt_small_train", "fp32-no-tensor-cores"): (46.9, 45.9),
    ("gpt_small_train_bf16_fused", "launch-bound"): (42.7, 12.4),
    ("gpt_tiny_train_r1", "launch-bound"): (14.1, 5.1),
    ("pageable", "pageable-copy"): (133.0, 7.8),
}
"""A step as measured, and with one fix as the prototype of the replay predicted it."""


@pytest.mark.parametrize(
    ("name", "why"),
    [(None, "the GPU is unknown"), ("Some GPU", "no specifications of `Some GPU` are known")],
)
def test_rules_that_need_a_known_gpu_are_named(name: str | None, why: str) -> None:
    capture = program([(GEMM, 200.0), (ADD, 20.0)])
    devices = capture.tables["devices"]
    capture.tables["devices"] = [{**row, "name": name} for row in devices if name is not None]
    diagnosis = diagnose_timeline(capture.timeline().trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    (note,) = [note for note in diagnosis.notes if "not evaluated" in note]
    assert note.startswith(f"{why}: not evaluated: fp32-no-tensor-cores")
    assert ("unknown GPU," in diagnosis_head(diagnosis)) is (name is None)


def diagnosed(path: str) -> TimelineDiagnosis:
    result = diagnosed_file(Path(path))
    assert isinstance(result, TimelineDiagnosis)
    return result


def of(name: str) -> TimelineDiagnosis:
    return diagnosed(str(NSYS / f"{name}.sqlite"))


@needs_shared
@pytest.mark.parametrize("name", FIRST)
@pytest.mark.usefixtures("recorded_times")
def test_the_planted_defect_comes_first(name: str) -> None:
    assert of(name).findings[0].rule in FIRST[name]


@needs_shared
@pytest.mark.parametrize("name", FOUND)
def test_what_else_is_there_is_found(name: str) -> None:
    assert FOUND[name] in [finding.rule for finding in of(name).findings]


@needs_shared
@pytest.mark.parametrize(("name", "rule"), STEP_MS)
@pytest.mark.usefixtures("recorded_times")
def test_a_fix_gives_what_the_prototype_predicted(name: str, rule: str) -> None:
    diagnosis = of(name)
    gains = {finding.rule: finding.step_ns for finding in diagnosis.findings}
    before, after = STEP_MS[name, rule]
    assert diagnosis.step_ns / 1e6 == pytest.approx(before, rel=0.01)
    assert (diagnosis.step_ns - (gains[rule] or 0)) / 1e6 == pytest.approx(
        after, abs=max(0.05 * before, 0.3)
    )


@needs_shared
def test_the_range_that_starves_the_gpu_is_named() -> None:
    finding = of("dataload").findings[0]
    assert finding.step_ns == pytest.approx(10.1e6, rel=0.02)
    assert any((place.kind, place.name) == ("range", "data") for place in finding.where)


@needs_shared
@pytest.mark.parametrize("capture", ["nsys/healthy.sqlite", "torch/healthy.json.gz"])
def test_a_healthy_program_has_nothing_to_fix(capture: str) -> None:
    assert all((finding.share or 0) < 0.04 for finding in diagnosed(str(SHARED / capture)).findings)


@needs_shared
@pytest.mark.parametrize("name", ["graph", "graph_node"])
def test_what_a_graph_has_solved_is_not_complained_of(name: str) -> None:
    assert "launch-bound" not in [finding.rule for finding in of(name).findings]


@needs_shared
@pytest.mark.parametrize("path", EVERY_SQLITE, ids=lambda path: path.name)
def test_gains_lie_inside_the_window(path: Path) -> None:
    result = diagnosed_file(path)
    if isinstance(result, TimelineDiagnosis):
        assert all(0 <= (f.recoverable_ns or 0) <= result.focus.length_ns for f in result.findings)
        needed = {rule for f in result.fixes for rule in f.needs}
        alone = [f.recoverable_ns or 0 for f in result.fixes if f.rule not in needed]
        # What is needed comes first, and takes a part of what the fix that needs it saves alone.
        takes_part = bool(result.fixes) and result.fixes[0].rule in needed
        assert not alone or takes_part or alone[0] == max(alone)
        assert sum(f.saved_ns or 0 for f in result.fixes) <= result.focus.length_ns * (1 + 1e-9)


@needs_shared
@pytest.mark.parametrize("name", FIRST)
def test_titles_are_short_and_have_a_number(name: str) -> None:
    titles = [finding.title for finding in of(name).findings]
    assert all(len(title) <= 55 for title in titles), titles
    assert all(any(c.isdigit() for c in title) for title in titles), titles


@needs_shared
def test_the_replay_fits_what_was_measured() -> None:
    replays = [of(name).replay for name in FIRST]
    errors = [replay.error for replay in replays if replay is not None]
    assert max(errors) < 0.01
    assert sum(errors) / len(errors) < 0.002


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_train", "conv", "item", "tiny"])
@pytest.mark.usefixtures("recorded_times")
def test_torch_traces_say_what_the_profiler_takes(name: str) -> None:
    findings = diagnosed(str(TORCH / f"{name}.json.gz")).findings
    assert "profiler-overhead" in [finding.rule for finding in findings]


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_train", "gpt_small_forward", "conv"])
def test_two_profilers_of_one_program_predict_the_same_step(name: str) -> None:
    by_nsys, by_torch = of(name), diagnosed(str(TORCH / f"{name}.json.gz"))
    assert by_torch.predicted_step_ns == pytest.approx(by_nsys.predicted_step_ns, rel=0.05)


HOST_FIXES = {"alloc-churn", "host-bound", "host-sync", "input-starved", "launch-bound"}
"""Their fixes remove no GPU work."""


@needs_shared
@pytest.mark.parametrize("name", sorted({*FIRST, *FOUND}))
def test_no_plan_takes_less_than_the_gpu_work_that_no_fix_removes(name: str) -> None:
    result = of(name)
    device = next(d for d in result.ledger.devices if d.device == result.meta["device"])
    # A sample stands for the window: its GPU work differs a little.
    least_ns = 0.95 * device.busy_share * result.step_ns
    assert result.predicted_step_ns > 0
    for finding, then_ns in zip(result.findings, result.plan_step_ns, strict=True):
        if finding.rule not in HOST_FIXES:
            break
        assert then_ns is None or then_ns >= least_ns


RANKS = [
    path
    for pattern in ("ranks/*", "public/ranks/*", "public/graphs/*")
    for path in sorted(SHARED.glob(pattern))
    if path.name.endswith((".sqlite", ".nsys-rep", ".json.gz"))
]
TIMELINES = [
    *(*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE),
    *(pytest.param(path, marks=pytest.mark.wide) for path in RANKS),
]
EXPLAINS_IDLE_TIME = {
    *HOST_FIXES,
    *("anomaly-mode", "between-steps", "blocking-launches", "elementwise-chain", "gil-contention"),
    *("gpu-shared", "page-faults", "pageable-copy", "recompilation", "small-transfers"),
    *("startup-bound", "exposed-communication", "dependency-stall"),
}
MAX_IDLE, MAX_UNKNOWN = 0.1, 0.05


@pytest.mark.parametrize("path", TIMELINES, ids=lambda path: path.name)
def test_idle_time_is_explained(path: Path) -> None:
    """Of any capture: by one of the first findings, and by causes that have a name."""
    if path.suffix in {".txt", ".pickle"} or "averages" in path.name:
        return  # no timeline
    answer = diagnosed_file(path)
    if not isinstance(answer, TimelineDiagnosis):
        assert answer.reason
        return
    for diagnosis in (answer, *(s.diagnosis for s in answer.sections if s.diagnosis is not None)):
        device = next(
            d for d in diagnosis.ledger.devices if d.device == diagnosis.meta.get("device")
        )
        length_ns = diagnosis.ledger.end_ns - diagnosis.ledger.start_ns
        assert device.ns("idle/unknown") <= MAX_UNKNOWN * length_ns
        if device.ns("idle") > MAX_IDLE * length_ns:
            first = {finding.rule for finding in diagnosis.findings[:3]}
            assert first & EXPLAINS_IDLE_TIME, first
            assert diagnosis.plan


DRAWS_ON = {
    **dict.fromkeys(("exposed-copy", "pageable-copy", "small-transfers"), ("copy", "idle")),
    **dict.fromkeys(
        (*HOST_FIXES, "between-steps", "blocking-launches", "recompilation"), ("idle",)
    ),
    **dict.fromkeys(("gil-contention", "alloc-churn", "dependency-stall"), ("idle",)),
    "exposed-communication": ("communication", "idle"),
}
"""What a fix can shorten at most, by rule; those of GPU work may shorten all of the window."""
ROUNDING_NS = 1_000


@pytest.mark.parametrize("path", TIMELINES, ids=lambda path: path.name)
def test_no_finding_claims_more_than_its_entries_of_the_ledger(path: Path) -> None:
    if path.suffix in {".txt", ".pickle"} or "averages" in path.name:
        return  # no timeline
    answer = diagnosed_file(path)
    if not isinstance(answer, TimelineDiagnosis):
        return
    for diagnosis in (answer, *(s.diagnosis for s in answer.sections if s.diagnosis is not None)):
        devices = diagnosis.ledger.devices
        length_ns = diagnosis.ledger.end_ns - diagnosis.ledger.start_ns
        for finding in diagnosis.findings:
            entries = DRAWS_ON.get(finding.rule)
            most_ns = length_ns
            if entries is not None:  # of the GPU that has most of it: which one a fix is about
                most_ns = max(sum(device.ns(entry) for entry in entries) for device in devices)
            assert (finding.recoverable_ns or 0.0) <= 1.001 * most_ns + ROUNDING_NS, finding.title
            shares = (e.value for e in finding.evidence if e.metric == "exposed_share")
            if finding.rule == "exposed-communication":
                most_share = max(d.ns("communication") for d in devices) / length_ns
                assert next(shares) <= 1.001 * most_share
            assert (finding.saved_ns or 0.0) <= 1.001 * length_ns + ROUNDING_NS, finding.title
            if finding.saved_ns and finding.measured_ns is not None:
                own_ns = max(finding.measured_ns, finding.recoverable_ns or 0.0)
                more = finding.in_plan and finding.saved_ns > 1.02 * own_ns
                assert not more or "the rest is time of" in timeline_gain(diagnosis, finding)


def test_debug_settings_of_the_environment_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes((DATA / "dataload.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as database, database:
        variables = "PATH=/home/demo/bin;CUDNN_LOGINFO_DBG=1;TOKEN=secret;TORCH_LOGS="
        database.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET name = 'DeviceEnvironment', value = ?"
            " WHERE name = 'OsDescription'",
            [variables],
        )
    answer = diagnosed_file(path)
    assert isinstance(answer, TimelineDiagnosis)
    note = "the environment of the capture has CUDNN_LOGINFO_DBG=1: cuDNN logs every call"
    assert note in answer.notes
    assert not any("secret" in text or "TORCH" in text for text in answer.notes)


@needs_shared
def test_threads_that_wait_for_each_other_stay_together_in_a_corrected_capture() -> None:
    """Threads of gloo copy, the main thread waits for them: no host work of its own."""
    answer = diagnosed_file(SHARED / "ranks" / "ddp_torch_2.rank0.trace.json.gz")
    assert isinstance(answer, TimelineDiagnosis)
    assert answer.findings[0].title.startswith("Host waits (`gloo:all_reduce`): GPU idle ")
    assert answer.ledger.devices[0].ns("idle/waiting") > 10 * answer.ledger.devices[0].ns(
        "idle/host"
    )


@needs_shared
@pytest.mark.parametrize("capture", sorted(SHARED.glob("public/torch/*mi[23]*")), ids=name)
def test_findings_on_gpus_of_amd_use_its_words(capture: Path) -> None:
    """Nothing there has SMs or Tensor Cores, and ncu measures none of it."""
    diagnosis = gs.diagnose(opened(capture)).timeline
    assert diagnosis is not None
    assert diagnosis.findings
    for finding in diagnosis.findings:
        texts = (finding.title, finding.estimate, finding.why, finding.fix, finding.verify)
        text = " ".join((*texts, finding.caveats))
        assert not re.search(r"\bSMs?\b|Tensor Core|--ncu|cuDNN", text), finding.rule
        assert not re.search(r"\. compute units?\b", text), finding.rule
