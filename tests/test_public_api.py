"""`import gpusight as gs`: the names, and that every result shows itself."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight import api
from gpusight.analysis import profiler_correction
from gpusight.analysis.corrected_trace import RecordedTrace
from gpusight.cli.commands import COMMANDS
from gpusight.errors import MissingDataError, UsageError
from gpusight.pace import WITHOUT_OVERHEAD
from gpusight.recording.doctor import checkup
from tests.recording.doctor.machines import bare
from tests.shared import DATA, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

DEMO = Path(gs.__file__).parent / "data" / "demo.sqlite"
STACKS = Path(__file__).parent / "data" / "healthy.json.gz"
GRAPH = DATA / "graph.sqlite"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_all_is_sorted_and_every_name_exists() -> None:
    assert gs.__all__ == sorted(gs.__all__)
    for name in gs.__all__:
        assert getattr(gs, name) is not None
    assert dir(gs) == gs.__all__  # no submodules, no imports
    with pytest.raises(AttributeError, match="nope"):
        _ = gs.nope


def test_results_are_also_found_beside_the_functions_that_give_them() -> None:
    assert (api.Result, api.View, api.Page) == (gs.Result, gs.View, gs.Page)


def test_every_command_has_its_function() -> None:
    others = {"api": {"api_calls"}, "orion": {"orion_build", "orion_check", "orion_plot"}}
    functions = {name for name in gs.__all__ if inspect.isfunction(getattr(gs, name))}
    for command in set(COMMANDS) - {"cache", "completion", "demo", "mcp"}:
        assert others.get(command, {command}) <= functions


def test_arguments_of_one_name_are_of_one_kind() -> None:
    kinds: dict[str, set[str]] = {}
    for name in gs.__all__:
        if inspect.isfunction(getattr(gs, name)):
            for parameter in inspect.signature(getattr(gs, name)).parameters.values():
                kinds.setdefault(parameter.name, set()).add(parameter.annotation)
    for name in ("launches", "every_launch", "kernel", "within", "device", "process", "metrics"):
        assert len(kinds[name]) == 1, f"{name} is {kinds[name]}"
    assert "launch" not in kinds


def test_the_package_is_typed_and_has_a_version_in_the_changelog() -> None:
    assert (Path(gs.__file__).parent / "py.typed").is_file()
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {gs.__version__}" in changelog


def test_open_takes_one_path_or_several() -> None:
    assert isinstance(gs.open(DEMO), gs.Trace)
    assert isinstance(gs.open(str(DEMO), cache=False), gs.Trace)
    several = gs.open([DEMO, GRAPH])
    assert [Path(t.meta.path).name for t in several] == ["demo.sqlite", "graph.sqlite"]


TABLES: dict[str, Callable[[gs.Trace], gs.View]] = {
    "kernels": gs.kernels,
    "ranges": gs.ranges,
    "api": gs.api_calls,
    "copies": gs.copies,
    "sql": lambda trace: gs.sql(trace, "SELECT name FROM kernels LIMIT 30"),
    "stats": lambda trace: gs.stats(trace, "cuda_gpu_kern_sum"),
    "launches": gs.launches,
}
TORCH = Path(gs.__file__).parent / "data" / "demo.json.gz"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_show_themselves(name: str) -> None:
    view = TABLES[name](gs.open(DEMO))
    assert len(view) == view.frame.height == len(view.rows()) > 0
    assert view.title in repr(view)
    assert str(view) == repr(view)
    assert max(map(len, repr(view).splitlines())) <= 100
    assert "--top" not in repr(view)
    assert "<table>" in view._repr_html_()
    assert json.loads(view.to_json())["rows"] == json.loads(json.dumps(view.rows()))
    assert len(view.to_csv().splitlines()) == len(view) + 1
    assert "\n| " in view.to_markdown()
    assert isinstance(view.notes, tuple)
    assert view.meta is not None


def test_pages_show_themselves() -> None:
    page = gs.summary(DEMO)
    assert page.facts["kernels"] > 0
    assert "kernels" in list(page)
    assert len(page["kernels"]) > 0
    assert "GPU busy" in repr(page)
    assert "<table>" in page._repr_html_()
    with pytest.raises(KeyError):
        page["nope"]
    assert gs.info(DEMO).facts["tool"].startswith("Nsight Systems")


QUESTIONS: dict[str, Callable[[], gs.Result]] = {
    "kernels": lambda: gs.kernels(DEMO),
    "summary": lambda: gs.summary(DEMO),
    "ledger": lambda: gs.ledger(DEMO),
    "whatif": lambda: gs.whatif(DEMO, graph=True),
    "diagnose": lambda: gs.diagnose(DEMO),
    "explain": lambda: gs.explain(DEMO),
    "timeline": lambda: gs.timeline(DEMO),
    "utilization": lambda: gs.utilization(DEMO),
    "drill": lambda: gs.drill(DEMO),
    "compare": lambda: gs.compare(DEMO, DEMO),
    "baseline": lambda: gs.baseline(DEMO),
    "hotspots": lambda: gs.hotspots(STACKS),
    "gate": lambda: gs.gate(DEMO, limits="step_time=10s"),
    "share_check": lambda: gs.share_check(DEMO),
    "doctor": gs.doctor,
}


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_every_answer_is_a_result_in_every_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "Machine", bare)  # this one starts several programs
    result = QUESTIONS[name]()
    assert isinstance(result, gs.Result)
    assert result.title
    assert isinstance(result.notes, tuple)
    assert result.meta is not None
    assert repr(result) == result.to_text().rstrip("\n")
    assert json.loads(result.to_json()) == json.loads(json.dumps(result.to_dict(), default=str))
    assert result.to_html().startswith("<!DOCTYPE html>")
    assert result._repr_html_()
    assert result.to_markdown()
    for ending in ("json", "md", "txt", "html"):
        assert result.save(tmp_path / f"answer.{ending}").stat().st_size > 0


def test_a_trace_shows_itself_in_a_notebook() -> None:
    trace = gs.open(DEMO)
    shown = trace._repr_html_()
    assert shown.startswith("<table><tr><th>Capture</th>")
    assert "demo.sqlite" in shown
    assert f"<code>kernels</code></th><td>{trace.row_count('kernels'):,} rows</td>" in shown
    assert gs.report(DEMO)._repr_html_()


def test_a_result_says_what_it_cannot_be_written_as(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written as svg"):
        gs.kernels(DEMO).save(tmp_path / "kernels.svg")
    with pytest.raises(UsageError, match="cannot be written as csv"):
        gs.gate(DEMO, limits="step_time=10s").to_csv()
    with pytest.raises(UsageError, match="cannot be written as json"):
        gs.report(DEMO).to_json()


def test_a_result_has_a_frame_where_there_is_one_table() -> None:
    assert gs.diagnose(DEMO).frame.height == len(gs.diagnose(DEMO).findings)
    with pytest.raises(UsageError, match=r"tables; choose one, such as result\["):
        _ = gs.summary(DEMO).frame


def test_selection() -> None:
    trace = gs.open(DEMO)
    inside = gs.kernels(trace, within="forward", device=0)
    assert 0 < inside.frame["calls"].sum() < gs.kernels(trace).frame["calls"].sum()


def test_what_cannot_be_answered_raises() -> None:
    with pytest.raises(MissingDataError, match="graph"):
        gs.kernels(GRAPH)
    with pytest.raises(MissingDataError, match="OS Runtime"):
        gs.stats(DEMO, "osrt_sum")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gs.open(5), "5 is not a capture"),  # type: ignore[call-overload]
        (lambda: gs.diagnose(5), "5 is not a capture"),  # type: ignore[arg-type]
        (lambda: gs.ledger([DEMO]), "is not one capture"),  # type: ignore[arg-type]
        (lambda: gs.whatif(DEMO, changes="x"), "changes are pairs"),  # type: ignore[arg-type]
        (lambda: gs.whatif(DEMO, changes=[("go", "x")]), "one of: speedup, remove"),
        (lambda: gs.ledger(DEMO, window="1s"), "pair of times"),  # type: ignore[arg-type]
        (lambda: gs.ledger(DEMO, window=(5,)), "pair of times"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_name_what_is_wanted(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_a_section_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(KeyError, match="no section 'gpus'; sections are devices, processes"):
        gs.info(DEMO)["gpus"]


def test_a_notebook_names_the_time_that_an_answer_covers() -> None:
    for made in (gs.kernels(DEMO), gs.ledger(DEMO), gs.diagnose(DEMO)):
        bundle = made._repr_mimebundle_()
        shown = bundle.get("text/html") or made._repr_html_()
        assert "steps of about" in shown
        assert "GPU busy" in shown


def test_export(tmp_path: Path) -> None:
    files = gs.export(DEMO, tmp_path / "tables", to="parquet", tables=["kernels"])
    assert [f.name for f in files] == ["kernels.parquet"]
    assert gs.export(DEMO, tmp_path / "t.json", to="chrome", within="forward")[0].is_file()
    with pytest.raises(UsageError, match="formats are"):
        gs.export(DEMO, tmp_path, to="xlsx")
    with pytest.raises(UsageError, match="chrome"):
        gs.export(DEMO, tmp_path / "x", to="csv", device=0)


def test_stats_values_are_in_the_units_of_their_headings() -> None:
    view = gs.stats(DEMO, "cuda_gpu_mem_size_sum")
    assert 1000 < view.frame["Total (MB)"].max() < 10_000  # type: ignore[operator]


def test_a_torch_trace_answers_what_only_it_can() -> None:
    trace = gs.open(TORCH)
    assert gs.ops(trace).frame["name"][0] == "aten::mm"
    assert "gpt.py" in gs.ops(trace, by="function").frame["name"][0]
    arithmetic, memory = gs.flops(trace), gs.memory(trace)
    assert 0.1 < arithmetic.facts["mfu"] < 0.5
    assert memory["peak"].frame["bytes"].sum() == memory.facts["peak_bytes"]
    assert len(gs.launches(trace, kernel="*gemm*")) > 100
    for result in (arithmetic, memory):
        assert result.title in repr(result)
        assert json.loads(result.to_json())["rows"]


def test_what_a_capture_cannot_answer_is_an_error_with_a_remedy() -> None:
    for question in (gs.ops, gs.flops):
        with pytest.raises(MissingDataError, match=r"torch\.profiler"):
            question(DEMO)


def test_a_summary_says_that_its_host_times_were_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes() -> str:
        return str(gs.summary(gs.open(DATA / "gpt_small_forward.sqlite")).to_dict()["meta"])

    assert WITHOUT_OVERHEAD in notes()
    # A capture that could not be corrected has its own times, and a note of its own.
    monkeypatch.setattr(profiler_correction, "without_profiler", lambda t, _: RecordedTrace(t))
    assert WITHOUT_OVERHEAD not in notes()
