"""`gpusight gate`: exit codes, files, settings, and that the page about it is true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

import gpusight as gs
from gpusight.cli.main import build_parser, main
from gpusight.comparison.baseline_file import save_baseline
from gpusight.comparison.comparability import KINDS
from gpusight.comparison.gate_limits import CONFIG_FILE_NAME, SETTINGS, load_config, read_limit
from gpusight.comparison.named_metrics import quantity
from gpusight.errors import MissingDataError, NotApplicableError, UsageError
from gpusight.render.gate_view import COMMAND_LINE
from tests.comparison.test_gate_check import BASE, NOISY, digest, runs
from tests.shared import DATA, REPOSITORY, SHARED, needs_shared

if TYPE_CHECKING:
    from gpusight.comparison.digest import Digest

PAGE = REPOSITORY / "docs" / "gate.md"
CI_PAGE = PAGE.with_name("ci.md")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def saved(name: str, digests: list[Digest]) -> str:
    save_baseline(digests, Path(name))
    return name


@pytest.fixture
def base() -> str:
    return saved("base.json", runs(*BASE))


@pytest.fixture
def slower() -> str:
    return saved("slower.json", runs(11.0, 11.1, 10.9))


@pytest.fixture
def noisy() -> str:
    return saved("noisy.json", runs(*NOISY))


def run_gate(*args: str) -> int:
    return main(["gate", *args])


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run_gate("--format", "json", *args) in {0, 1, 3}
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


def test_exit_codes(base: str, slower: str, noisy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_gate("--baseline", base, "--max", "step_time=+3%", "--", base) == 0
    assert run_gate("--baseline", base, "--max", "step_time=+3%", slower) == 1
    unsettled = ("--baseline", base, "--max", "step_time=-1%", noisy)
    assert run_gate(*unsettled) == 3
    assert re.search(
        r"INCONCLUSIVE \(exit code 3\): step_time \S+ ± \S+% against -1%; .* captures per side",
        " ".join(capsys.readouterr().out.split()),
    )
    assert run_gate("--inconclusive", "fail", *unsettled) == 1
    assert run_gate("--inconclusive", "pass", *unsettled) == 0
    assert "Gate INCONCLUSIVE (exit code 0, accepted): step_time " in capsys.readouterr().out
    assert run_gate("--baseline", base, "--max", "kernel:gemm=+3%", slower) == 1
    assert run_gate("--max", "step_time=50ms", slower) == 0
    assert run_gate("--max", "step_time=5ms", slower) == 1
    assert run_gate("--baseline", base, "--max", "step_time=+3", slower) == 2


def test_without_limits_it_is_the_step_time(
    base: str, slower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (check,) = document(capsys, slower, "--baseline", base)["checks"]
    assert (check["metric"], check["limit"], check["status"]) == ("step_time", "+5%", "fail")


@pytest.mark.parametrize(
    "words",
    [
        "--baseline base.json slower.json --max step_time=+3% --max launches=+1 noisy.json",
        "noisy.json --max step_time=+3% --max launches=+1 --baseline base.json slower.json",
        "--max step_time=+3% --baseline base.json slower.json --max launches=+1 -- noisy.json",
        "--baseline base.json --baseline slower.json --max=step_time=+3% --max=launches=+1 noisy*",
    ],
)
def test_files_stand_where_people_write_them(
    words: str, base: str, slower: str, noisy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (base, slower, noisy) == ("base.json", "slower.json", "noisy.json")
    result = document(capsys, *words.split())
    assert len(result["meta"]["baseline"]) == 6
    assert len(result["meta"]["captures"]) == 3
    assert [check["metric"] for check in result["checks"]] == ["step_time", "launches"]


def test_every_key_of_the_document_is_described(
    base: str, slower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
    described = next(line for line in page.splitlines() if line.startswith("`gate`: "))
    result = document(capsys, slower, "--baseline", base)
    keys = {*result, *result["meta"], *result["checks"][0]} - {"command", "title"}
    assert {key for key in keys if f"`{key}`" not in described} == set()


def test_captures_that_follow_baselines_are_judged(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(DATA / "dataload.sqlite"), str(DATA / "healthy.json.gz")
    result = document(capsys, "--max", "step_time=100s", "--baseline", base, *runs)
    assert len(result["meta"]["baseline"]) == 3
    assert result["meta"]["captures"] == ["dataload.sqlite", "healthy.json.gz"]
    for unclear in ([runs[0], runs[1]], [runs[0], base], [base, runs[0], base]):
        assert run_gate("--max", "step_time=100s", "--baseline", *unclear) == 2
        assert "--baseline took all files; write: gpusight gate" in capsys.readouterr().err


def test_a_file_that_is_no_baseline_is_named(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text("{}", encoding="utf-8")
    for words in (["bad.json", "new.sqlite"], ["bad.json", "--", base]):
        Path("new.sqlite").touch()
        assert run_gate("--baseline", *words) == 2
        text = "gpusight gate: bad.json is neither a timeline nor a baseline; pass a capture "
        assert capsys.readouterr().err.startswith(text)
    assert run_gate("--baseline", base, "--", base, "--steps", "2-5") == 2
    assert "write options before --" in capsys.readouterr().err


def test_reports_are_written_beside_the_answer(
    base: str, slower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--baseline", base, "--junit", "gate.xml", "--markdown", "gate.md", slower)
    assert run_gate(*words) == 1
    text = "Gate FAIL (exit code 1): step_time +10.0% ± 2.3% against +5%\n"
    assert capsys.readouterr().out.startswith(text)
    assert ET.parse("gate.xml").getroot().get("failures") == "1"
    assert Path("gate.md").read_text(encoding="utf-8").startswith("## Gate FAIL")
    capsys.readouterr()
    assert run_gate(*words, "-o", "answer.md") == 1
    assert capsys.readouterr() == ("", f"gpusight gate: {text}")
    assert Path("answer.md").read_bytes() == Path("gate.md").read_bytes()
    assert run_gate(*words, "-o", "answer.json") == 1
    assert json.loads(Path("answer.json").read_text(encoding="utf-8"))["passed"] is False


@pytest.mark.parametrize(
    "words",
    [
        "--baseline base.json --max step_time=+3% -- missing.sqlite",
        "--baseline nobase.json --max step_time=+3% -- base.json",
        "--baseline base.json --max step_time=+banana -- base.json",
    ],
)
def test_a_green_report_does_not_outlive_an_error(base: str, words: str) -> None:
    reports = ["--junit", "gate.xml", "--markdown", "gate.md"]
    assert run_gate("--baseline", base, "--max", "step_time=+3%", *reports, "--", base) == 0
    assert run_gate(*reports, *shlex.split(words)) == 2
    assert ET.parse("gate.xml").getroot().get("errors") == "1"
    assert Path("gate.md").read_text(encoding="utf-8").startswith("## Gate error")


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", '{\n  "meta"'), ("a.md", "## Gate error"), ("a.txt", "Gate error")],
)
def test_a_green_answer_does_not_outlive_an_error(base: str, name: str, start: str) -> None:
    words = ("--baseline", base, "--max", "step_time=+3%", "-o", name)
    assert run_gate(*words, "--", base) == 0
    assert run_gate(*words, "--", "missing.sqlite") == 2
    text = Path(name).read_text(encoding="utf-8")
    assert text.startswith(start)
    assert "missing.sqlite" in text
    if name == "a.json":
        assert (json.loads(text)["passed"], json.loads(text)["outcome"]) == (False, "error")


def test_reports_have_the_remedy_of_an_error(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise NotApplicableError("no steps can be compared", hint="record steps")

    monkeypatch.setattr("gpusight.cli.commands.gate._result", absent)
    words = ("--baseline", base, "--junit", "gate.xml", "--markdown", "gate.md", "--", base)
    assert run_gate(*words) == 2
    error = ET.parse("gate.xml").getroot().find(".//error")
    assert error is not None
    assert error.get("message") == "no steps can be compared; record steps"
    assert "record steps" in Path("gate.md").read_text(encoding="utf-8")


def test_a_picture_as_output_hides_no_error(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_gate("--baseline", base, "-o", "x.png") == 2
    assert "no capture was given" in capsys.readouterr().err


def test_an_error_replaces_no_file_of_another_kind(base: str) -> None:
    before = Path(base).read_bytes()
    Path("notes.md").write_text("my notes", encoding="utf-8")
    words = ("--baseline", base, "--junit", base, "--markdown", "notes.md", "--", "missing.sqlite")
    assert run_gate(*words) == 2
    assert run_gate("--baseline", base, "-o", base, "--", "missing.sqlite") == 2
    assert run_gate("--baseline", base, "-o", "notes.md", "--", "missing.sqlite") == 2
    assert Path(base).read_bytes() == before
    assert Path("notes.md").read_text(encoding="utf-8") == "my notes"


def test_what_was_made_of_other_captures_is_explained(
    base: str, slower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_gate("--baseline", base, slower, slower) == 2
    capsys.readouterr()
    assert run_gate(slower, "--baseline", base) == 1
    out = capsys.readouterr().out
    assert "Significant changes per step: compute/matmul +500 µs" in out
    assert out.endswith(f"next: gpusight compare {base} --vs {slower}\n")
    assert run_gate(slower, "--baseline", base, "--details") == 1
    assert "- Kernel launches" in (out := capsys.readouterr().out) or "- GPU busy time" in out
    assert document(capsys, slower, "--baseline", base)["explanation"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no capture was given; gpusight gate --baseline FILE -- CAPTURE"),
        ("--baseline base.json slower.json", "write: gpusight gate --baseline base.json -- sl"),
        ("slower.json", "'step_time=+5%' needs a baseline, and none is given; create one:"),
        ("slower.json --baseline nope.json", "nope.json"),
        ("slower.json --max step_time", "'step_time' is not a limit; write METRIC=+3%"),
        ("slower.json --max steptime=5ms", "unknown metric 'steptime'"),
        ("slower.json --max step_time=5MB", "step_time is a time"),
        ("slower.json --max step_time=5ms --confidence 100%", "a confidence of 100% is inv"),
        ("slower.json --max step_time=-200%", "no metric falls by over 100%"),
        ("slower.json --max step_time=5ms --confidence 10%", "confidence"),
        ("slower.json --max step_time=5ms --gate train", "--gate train needs settings"),
        ("slower.json --max step_time=5ms --config nope.toml", "cannot read nope.toml"),
        ("slower.json --max step_time=5ms --junit slower.json", "is read by this gate"),
        ("slower.json --baseline base.json --markdown base.json", "is read by this gate"),
        ("slower.json --max step_time=5ms --junit x --markdown x", "would be written twice"),
        ("slower.json --max step_time=5ms --junit x.sqlite", "is named like a capture"),
        (
            "slower.json --max step_time=5ms -o x.csv",
            "cannot write .csv files; -o takes .txt, .json or .md",
        ),
        ("slower.json --max step_time=5ms -o x.xml", "-o does not write JUnit XML; use --junit"),
        ("slower.json --max step_time=5", "write step_time=5ms"),
        ("slower.json --max step_time=5ms -o x.png", "cannot write .png files"),
        ("slower.json --max step_time=5ms --junit no/such/folder/x", "cannot write"),
    ],
)
@pytest.mark.usefixtures("base", "slower")
def test_mistakes_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path.cwd().glob("*.json")}
    assert run_gate(*words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert {path: path.read_bytes() for path in Path.cwd().glob("*.json")} == before


def test_settings_are_found_and_overruled(
    base: str, slower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert base == "base.json"
    Path(CONFIG_FILE_NAME).write_text(
        "[gate]\nbaseline = 'base.json'\njunit = 'gate.xml'\n"
        "[gate.max]\nstep_time = '+3%'\nlaunches = '+0'\n"
        "[gate.lax.max]\nstep_time = '+30%'\n",
        encoding="utf-8",
    )
    assert run_gate(slower) == 1
    assert Path("gate.xml").is_file()
    assert run_gate(slower, "--gate", "lax") == 0
    assert run_gate(slower, "--max", "step_time=+20%") == 0
    capsys.readouterr()
    result = document(capsys, slower, "--max", "step_time=+20%")
    limits = [(check["metric"], check["limit"]) for check in result["checks"]]
    assert limits == [("launches", "+0"), ("step_time", "+20%")]
    Path("inner").mkdir()
    other = Path("inner/other.toml")
    other.write_text("[gate]\nbaseline = '../base.json'\ninconclusive = 'fail'\n", encoding="utf-8")
    result = document(capsys, slower, "--config", str(other))
    assert (result["meta"]["inconclusive"], len(result["checks"])) == ("fail", 1)


def test_parts_of_captures_are_chosen(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    (both,) = document(capsys, train, "--max", "step_time=1s")["checks"]
    Path(CONFIG_FILE_NAME).write_text("[gate]\nsteps = 1\n", encoding="utf-8")
    (one,) = document(capsys, train, "--max", "step_time=1s")["checks"]
    (all_,) = document(capsys, train, "--max", "step_time=1s", "--steps", "all")["checks"]
    assert one["after"] != both["after"]
    assert all_["after"] != one["after"]


def test_a_baseline_of_a_part_is_held_against_the_same_part(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", "save", train, "--steps", "1", "-o", "part.json"]) == 0
    capsys.readouterr()
    assert run_gate("--baseline", "part.json", "--", train) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "uses --steps 1 and" in err
    assert "; add --steps 1, or save a new baseline" in err
    assert run_gate("--baseline", "part.json", "--steps", "1", "--", train) == 0
    with pytest.raises(MissingDataError, match="cover different parts"):
        gs.gate(train, baseline="part.json")
    assert gs.gate(train, baseline="part.json", steps="1").passed


def test_a_request_that_fits_one_capture_only_names_it(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--device 9", "--in nothing*", "--steps 900"):
        assert run_gate(train, "--max", "step_time=1s", *option.split()) == 2
        assert f"gpusight gate: {Path(train).name}: no " in capsys.readouterr().err


def test_a_capture_that_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = DATA / "thrice.ncu-rep.xz"
    assert run_gate(str(report), "--max", "step_time=5ms", "--junit", "gate.xml") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    (error,) = ET.parse(tmp_path / "gate.xml").getroot().findall("testsuite/testcase/error")
    assert error.get("message")


def test_from_python(base: str, slower: str, train: str) -> None:
    view = gs.gate(slower, baseline=base, limits=["step_time=+3%"])
    assert not view.passed
    assert not view
    view.save("view.xml")
    assert Path("view.xml").read_text(encoding="utf-8") == view.to_junit()
    with pytest.raises(UsageError, match=r"write \.json, \.md or \.txt"):
        view.save("view.csv")
    with pytest.raises(UsageError, match="has no table"):
        _ = view.frame
    assert gs.gate(slower, limits={"findings": 0})
    Path("other.json").write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(gs.errors.NotACaptureError, match=r"other\.json is neither a timeline nor"):
        gs.gate(slower, baseline="other.json")
    assert repr(view).startswith("Gate FAIL")
    assert gs.gate(slower, baseline=[base], limits="step_time=+30%").passed
    assert gs.gate(slower, baseline=base, limits={"step_time": "+30%"}).passed
    assert gs.gate(gs.open(train), baseline=train).passed
    wrong: Any
    for wrong in (5, [5], None):
        with pytest.raises(UsageError, match="is no capture"):
            gs.gate(wrong, baseline=base)
        with pytest.raises(UsageError, match="is no capture"):
            gs.compare(base, wrong)
    assert gs.gate([digest((10, 10.1, 9.9))], limits=["step_time=50ms"]).passed
    with pytest.raises(MissingDataError):
        gs.gate(DATA / "thrice.ncu-rep.xz", limits=["step_time=5ms"])


# The page ----------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    text = "".join(page.read_text(encoding="utf-8") for page in (PAGE, CI_PAGE))
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[list[str]]:
    """Give every command line of ours in the page, also those of its workflows."""
    text = "\n".join(blocks("sh") + blocks("yaml")).replace("\\\n", " ")
    # A folded scalar of YAML is one line.
    text = re.sub(r">\n((?: {10,}.*\n)+)", lambda m: " ".join(m[1].split()) + "\n", text)
    result = re.findall(
        r"(gpusight (?:gate|baseline|record|share) .*?)(?:;|#|$)", text, re.MULTILINE
    )
    return [shlex.split(line) for line in result]


def test_the_commands_of_the_page_are_understood() -> None:
    result = commands()
    assert len(result) >= 9
    gates = [words for words in result if words[1] == "gate"]
    assert len(gates) >= 5
    for words in result:
        args = build_parser().parse_args(words[1:])
        if words[1] == "gate":
            assert args.file or len(args.baseline) > 1
            assert all(map(read_limit, args.max))


def test_the_page_for_ci_shows_each_outcome_and_its_exit_code() -> None:
    shown = dict(re.findall(r"^Gate ([A-Z]+) \(exit code (\d)\)", CI_PAGE.read_text("utf-8"), re.M))
    assert shown == {"PASS": "0", "FAIL": "1", "INCONCLUSIVE": "3"}
    (workflow,) = [text for text in blocks("yaml") if "runs-on" in text]
    assert workflow.count("# change") == 3  # as the page says


def test_the_settings_of_the_page_are_understood(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / CONFIG_FILE_NAME
    path.write_text(text, encoding="utf-8")
    every = set(re.findall(r"^(\w+) =", text.partition("[gate.max]")[0], re.MULTILINE)) | {"max"}
    assert every == set(SETTINGS)
    assert len(load_config(path).limits) == 7
    assert str(load_config(path, "infer").limits[0]) == "step_time=+10%"


def test_the_metrics_of_the_page_are_known() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    keys = [shlex.split(key.partition("=")[0])[0] for key in cells if "--" not in key]
    assert len(keys) > 25
    for key in keys:
        assert quantity(runs(*BASE), key).key == key


def test_the_page_names_what_can_be_accepted() -> None:
    rows = re.findall(r"^\| .* \| `([a-z-]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(KINDS)
    words = "gate new.sqlite --baseline base.json --allow-changed kernels,steps"
    assert build_parser().parse_args(words.split()).allow_changed == ["kernels", "steps"]


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_the_noise_of_a_shared_machine_is_inconclusive() -> None:
    base, now = (
        [str(SHARED / "nsys" / f"{name}_r{number}.sqlite") for number in (1, 2, 3)]
        for name in ("gpt_tiny_train", "gpt_tiny_train_tf32")
    )
    view = gs.gate(now, baseline=base, limits=["step_time=+3%", "kernel_time=+3%"])
    assert [check.status.value for check in view.checks] == ["inconclusive", "pass"]
    assert (view.outcome, view.exit_code) == ("inconclusive", 3)
    assert view.checks[0].repeats
    # The page shows this gate.
    page = PAGE.read_text(encoding="utf-8")
    lines = view.to_text(words=COMMAND_LINE).splitlines()
    assert "\n".join(lines[lines.index("") + 1 :]) in page
    comparison = view.comparison
    assert comparison is not None
    times = [f"{ns / 1e6:.1f}" for ns in comparison.before.step_ns]
    assert f"{times[0]}, {times[1]} and {times[2]} ms" in " ".join(page.split())


@needs_shared
def test_one_capture_per_side_is_no_regression() -> None:
    first, last = (SHARED / "nsys" / f"gpt_tiny_train_r{number}.sqlite" for number in (1, 3))
    view = gs.gate(last, baseline=first, limits=["step_time=+3%", "launches=+0"])
    assert [check.status.value for check in view.checks] == ["inconclusive", "pass"]
    assert view.checks[0].repeats == 3


@needs_shared
def test_slower_kernels_fail_and_faster_ones_pass() -> None:
    old, new = (
        str(SHARED / "nsys" / name)
        for name in ("gpt_small_train.sqlite", "gpt_small_train_bf16_fused.sqlite")
    )
    faster = gs.gate(new, baseline=old, limits=["kernel_time=+3%"])
    assert (faster.passed, faster.outcome) == (False, "inconclusive")  # 1,621 -> 887 kernels
    limits = ["kernel_time=+3%"]
    assert gs.gate(new, baseline=old, limits=limits, allow_changed=["kernels"]).passed
    assert not gs.gate(old, baseline=new, limits=["kernel_time=+3%"]).passed
