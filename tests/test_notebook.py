"""`%load_ext gpusight` in IPython's own shell: magics, completion, and what results show."""

from __future__ import annotations

import atexit
import gc
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.recording.inside import cell_recording
from gpusight.recording.inside.recording_window import NoRecorder
from gpusight.recording.inside.step_hub import HUB
from gpusight.render.html.notebook_frame import MAX_PAGE_BYTES, frame
from gpusight.render.result_view import DiagnosisView, Result
from gpusight.viewer.timeline_snapshot import timeline
from tests.shared import DATA
from tests.traces import build_trace

interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
completer: Any = pytest.importorskip("IPython.core.completer")
CAPTURE = DATA / "dataload.sqlite"
TRAIN = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(5):
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    traitlets = pytest.importorskip("traitlets.config")
    config = traitlets.Config({"HistoryManager": {"enabled": False}})
    made = interactive.InteractiveShell(config=config)
    made.Completer.use_jedi = False
    assert made.run_cell("%load_ext gpusight").success
    yield made
    atexit.unregister(made.atexit_operations)
    # It would look for garbage among all that the tests before have left.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    made.atexit_operations()


class BundledRecorder(NoRecorder):
    """Writes a capture that has GPU work, whatever ran."""

    suffix = ".sqlite"

    def __init__(self, began: list[int]) -> None:
        self._began = began

    def step_began(self, number: int) -> None:
        self._began.append(number)

    def write(self, path: Path) -> None:
        shutil.copyfile(CAPTURE, path)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have cells recorded by it; gives the steps that it is told of."""
    began: list[int] = []
    monkeypatch.setattr(cell_recording, "recorder_for", lambda _: BundledRecorder(began))
    return began


# %gpusight FILE ---------------------------------------------------------------------------------


def test_the_line_magic_diagnoses_a_capture(shell: Any) -> None:
    done = shell.run_cell(f"%gpusight '{CAPTURE}' --steps 3-5 --as found")
    assert isinstance(done.result, DiagnosisView)
    assert done.result.timeline is not None
    assert done.result.timeline.steps == 3
    assert shell.user_ns["found"] is done.result


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%gpusight nothing.sqlite", "no such file: nothing.sqlite"),
        ("%gpusight", "FILE; %gpusight --help"),
        ("%gpusight 'x", "cannot be split into words"),
        (f"%gpusight {CAPTURE} --as 1x", "not a name of a variable"),
        ("%%gpusight --with nsys\n1", "invalid choice: 'nsys'"),
        ("%%gpusight --steps x\n1", "--steps 'x'"),
        ("%%gpusight -o nowhere/run\n1", "nowhere is not a folder"),
    ],
)
def test_bad_calls_get_one_line(
    shell: Any, capsys: pytest.CaptureFixture[str], line: str, why: str
) -> None:
    done = shell.run_cell(line)
    assert not done.success
    shown = "".join(capsys.readouterr())
    assert why in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) == 1


def test_help_of_the_magics(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%gpusight --help").success
    assert shell.run_cell("%%gpusight --help\n1").success
    shown = capsys.readouterr().out
    assert "--as NAME" in shown
    assert "--steps A-B" in shown


# %%gpusight -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("steps")
def test_a_cell_is_recorded_and_diagnosed(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%%gpusight -o run --as found\nx = 5\nprint('ran')").success
    assert shell.user_ns["found"].findings[0].rule == "input-starved"
    assert shell.user_ns["x"] == 5
    assert Path("run.sqlite").exists()
    out, err = capsys.readouterr()
    assert out.startswith("ran\n")
    assert "1. Data loading (`data`) stalls the GPU" in out
    assert re.search(r"gpusight: recorded \S+run\.sqlite \(\d+\.\d kB\)", err)
    assert not shell.run_cell("%%gpusight -o run\ny = 1").success  # it exists
    assert "y" not in shell.user_ns


def test_steps_are_counted_anew_in_each_cell(shell: Any, steps: list[int]) -> None:
    cell = (
        "%%gpusight --steps 2:3 --as found\nimport gpusight as gs\nfor _ in gs.step(range(5)): pass"
    )
    for _ in range(2):
        assert shell.run_cell(cell).success
        assert isinstance(shell.user_ns.pop("found"), DiagnosisView)
    assert steps == [2, 3, 2, 3]
    assert not HUB.has_listeners


@pytest.mark.usefixtures("steps")
def test_steps_that_never_come_are_named(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%gpusight --steps 7:8\nimport gpusight as gs\nlist(gs.step(range(3)))")
    assert done.success
    assert done.result is None
    err = capsys.readouterr().err
    assert "the cell ran, but nothing was recorded: step 7 never began (3 were counted)" in err


@pytest.mark.usefixtures("steps")
def test_a_cell_that_fails_shows_its_own_error_once(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell("%%gpusight\n1 / 0").success
    shown = re.sub(r"\x1b\[[\d;]*m", "", "".join(capsys.readouterr()))
    assert shown.count("ZeroDivisionError: division by zero") == 1
    assert shown.count("the cell failed, so it is not diagnosed") == 1
    assert not HUB.has_listeners


def test_a_cell_without_a_gpu_still_runs(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    assert shell.run_cell("%%gpusight --with cupti\nx = 6").success
    assert shell.user_ns["x"] == 6
    err = capsys.readouterr().err
    assert "the cell ran, but it was not recorded: CUPTI cannot record here" in err
    assert err.count("\n") == 1


def test_torch_without_a_gpu(shell: Any, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert shell.run_cell(f"%%gpusight --steps 1:2 -o cpu\n{TRAIN}").success
    assert "there is nothing to diagnose: PyTorch finds no GPU here" in capfd.readouterr().err
    names = gs.ops("cpu.trace.json.gz", window=(None, None)).frame["name"].to_list()
    assert "Optimizer.step#SGD.step" in names
    assert shell.run_cell("%%gpusight --with torch\npass").success
    assert "nothing was recorded: PyTorch did no work" in capfd.readouterr().err


# What notebooks show ----------------------------------------------------------------------------


def charted() -> dict[str, Result]:
    torch_trace = DATA / "torch_odd.json.gz"
    return {
        "timeline": gs.timeline(CAPTURE),
        "utilization": gs.utilization(CAPTURE),
        "ledger": gs.ledger(CAPTURE),
        "memory": gs.memory(torch_trace),
        "hotspots": gs.hotspots(torch_trace),
    }


def test_charts_are_frames_above_their_tables() -> None:
    for name, result in charted().items():
        shown = result._repr_mimebundle_()["text/html"]
        match = re.match(r'<iframe srcdoc="([^"]*)"([^>]*)></iframe>', shown)
        assert match, name
        assert 'sandbox="allow-scripts"' in match[2]
        page = unescape(match[1])
        assert "default-src 'none'" in page
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
        assert "<table>" in shown[match.end() :]
        assert "<script" not in shown[match.end() :]
    assert gs.kernels(CAPTURE)._repr_mimebundle_() == {}  # a table needs no frame
    assert "<table>" in gs.kernels(CAPTURE)._repr_html_()


def test_the_shell_takes_both_kinds_of_output(shell: Any) -> None:
    data, _ = shell.display_formatter.format(gs.timeline(CAPTURE))
    assert data["text/html"].startswith("<iframe")
    assert data["text/plain"].startswith("Timeline")
    data, _ = shell.display_formatter.format(gs.diagnose(CAPTURE))
    assert "<iframe" not in data["text/html"]
    assert data["text/plain"].startswith("dataload.sqlite")


def test_any_page_can_be_shown() -> None:
    shown = gs.report(CAPTURE).show(400)
    assert 'height="400"' in shown._repr_html_()
    assert "notebooks show it" in repr(shown)
    assert "save it with" in frame("x" * (MAX_PAGE_BYTES + 1), "big", 10)


def test_names_of_a_capture_stay_inside_the_frame() -> None:
    name = '"></iframe><script>alert(1)</script>'
    named = [{"start_ns": 0, "end_ns": 1000, "name": name}]
    trace = build_trace(kernels=named, ranges=named, threads=[{"thread": 11, "name": name}])
    shown = Result(timeline(trace))._repr_mimebundle_()["text/html"]
    assert shown.count("<iframe") == shown.count("</iframe>") == 1
    assert "<script" not in shown


# Completion -------------------------------------------------------------------------------------


def test_names_of_functions_results_and_sections_are_completed(shell: Any) -> None:
    shell.run_cell("import gpusight as gs")
    shell.push({"page": gs.summary(CAPTURE), "trace": gs.open(CAPTURE)})
    for text, expected in (
        ("gs.diag", "gs.diagnose"),
        ("page.to_j", "page.to_json"),
        ('page["kern', "kernels"),
        ("trace.api_c", "trace.api_calls"),
        ("%gpus", "%gpusight"),
    ):
        with completer.provisionalcompleter():
            matches = [found.text for found in shell.Completer.completions(text, len(text))]
        assert any(expected.endswith(match.strip("\"'%")) for match in matches), (text, matches)
