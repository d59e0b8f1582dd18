"""Every command through `main`, as a user types it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.commands import COMMANDS, demo
from gpusight.cli.main import main
from gpusight.readers.open import open_trace
from tests.render.hostile import HOSTILE
from tests.shared import DATA
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

ANALYSES = ("info", "summary", "kernels", "ranges", "api", "copies")


@pytest.mark.parametrize("command", ANALYSES)
def test_tables_fit_eighty_columns(
    command: str, train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, train]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", ANALYSES)
@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_other_formats(
    command: str, form: str, train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, train, "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        document = json.loads(out)
        assert document["meta"]["command"]
        assert document["rows"]
    elif form == "csv":
        rows = list(csv.reader(io.StringIO(out)))
        assert len({len(row) for row in rows}) == 1
    else:
        assert "\n| " in out


def test_top_limits_rows(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", train, "--top", "3"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3 + 3 + 1
    assert "more rows (use --top 0 for all)" in out
    assert main(["kernels", train, "--top", "0", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 21


def test_in_selects_a_range(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for extra in ([], ["--in", "forward"]):
        assert main(["kernels", train, "--format", "json", *extra]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        counts.append(sum(row["calls"] for row in rows))
    assert 0 < counts[1] < counts[0]


def test_output_goes_to_a_file(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kernels.json"
    assert main(["kernels", train, "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(target.read_text())["meta"]["command"] == "kernels"


@pytest.mark.parametrize("name", ["other.sqlite", "other.nsys-rep"])
def test_output_never_replaces_a_capture(
    name: str, train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", train, "-o", str(tmp_path / name)]) == 2
    assert "named like a capture" in capsys.readouterr().err
    assert main(["kernels", train, "-o", train]) == 2
    assert "is the capture itself" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_output_that_cannot_be_written(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", train, "-o", str(tmp_path / "no" / "such" / "folder.txt")]) == 2
    assert "gpusight: error: cannot write" in capsys.readouterr().err


def test_what_the_capture_cannot_answer(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", graph]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "graph" in err
    assert main(["kernels", graph, "--format", "json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["meta"]["not_applicable"]["reason"]
    assert document["rows"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernels", "no_such_file.sqlite"], "no such file"),
        (["kernel"], "did you mean kernels?"),
        (["frobnicate"], "commands are doctor, record, info"),
        ([__file__], "gpusight summary"),
        (["kernels", __file__], "not a capture"),
        (["sql"], "needs a capture and a query"),
        (["sql", "--columns", "nope"], "no table 'nope'"),
        (["stats"], "needs a capture"),
        (["stats", "-r", "nope", "x.sqlite"], "no report 'nope'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpusight: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["kernels"], ["kernels", "x", "--top", "-1"]])
def test_argparse_mistakes_are_one_line_too(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith("see: gpusight kernels --help\n")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_fits_the_screen_and_shows_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"\nexamples:\n  gpusight {command}" in out
    assert max(map(len, out.partition("\nexamples:")[0].splitlines())) <= 80


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_interrupt(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> Trace:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpusight.readers.open.open_trace", interrupted)
    assert main(["kernels", train]) == 130
    assert capsys.readouterr().err == "gpusight: interrupted\n"


def test_hostile_names_never_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"start_ns": i, "end_ns": i + 1, "name": n} for i, n in enumerate(HOSTILE)]
    trace = build_trace(kernels=rows)
    monkeypatch.setattr("gpusight.readers.open.open_trace", lambda *_a, **_k: trace)
    for extra in ([], ["--wide"], ["--format", "json"], ["--format", "markdown"]):
        assert main(["kernels", "x", *extra]) == 0
        out = capsys.readouterr().out
        assert all(line.isprintable() for line in out.split("\n"))


def test_a_hostile_path_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "evil\x1b[31m\nname.sqlite"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert err.count("\n") == 1


def test_sql(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT count(*) AS n FROM kernels"
    for operands in ([train, query], [query, train]):
        assert main(["sql", *operands, "--format", "csv"]) == 0
        header, value = capsys.readouterr().out.splitlines()
        assert header == "n"
        assert int(value) > 1000
    assert main(["sql", train, "SELECT nope FROM kernels"]) == 2
    assert "gpusight: error: " in capsys.readouterr().err


def test_sql_lists_tables_and_columns(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", train, "--tables", "--format", "json"]) == 0
    tables = {row["table"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert tables["kernels"]["rows"] > 1000
    assert "start_ns" in tables["kernels"]["columns"]
    assert main(["sql", "--tables", "--top", "0"]) == 0
    assert "thread_switches" in capsys.readouterr().out
    assert main(["sql", "--columns", "kernels", "--top", "0"]) == 0
    assert "registers_per_thread" in capsys.readouterr().out


def test_every_step_of_the_demo_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for which, steps in demo.NEXT.items():
        capture = str(Path(demo.__file__).parents[2] / demo.CAPTURES[which])
        for command, _ in steps:
            assert main([word.replace("DEMO", capture) for word in shlex.split(command)]) == 0
            assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ([], "unfused-optimizer"),
        (["nsys"], "unfused-optimizer"),
        (["torch"], "launch-bound"),
        (["ncu"], "atomic-contention"),
    ],
)
def test_demo_says_what_to_try_next(
    which: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *which]) == 0
    out = capsys.readouterr().out
    assert says in out
    assert "Try next:" in out
    assert main(["demo", *which, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["command"] == "diagnose"


def test_cache(
    train: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusight.readers.column_cache._MIN_CACHED_ROWS", 1)
    with open_trace(train) as trace:
        trace.table("kernels", ["start_ns"])
    assert main(["cache", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["captures"] == 1
    assert main(["cache", "clear"]) == 0
    assert "Deleted from the cache" in capsys.readouterr().out
    assert main(["cache", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["captures"] == 0


def test_captures_are_not_changed(train: str) -> None:
    before = Path(train).stat().st_mtime_ns, sorted(p.name for p in Path(train).parent.iterdir())
    for command in ANALYSES:
        main([command, train])
    after = Path(train).stat().st_mtime_ns, sorted(p.name for p in Path(train).parent.iterdir())
    assert before == after


EVIDENCE = {
    "trace.json": gzip.decompress((DATA / "healthy.json.gz").read_bytes()),
    "old.json": b'{"record_shapes": 1, "traceEvents": []}',
    "list.json": b'[{"name": "add", "ph": "X"}]',
    "jax.json.gz": (DATA / "jax_small.trace.json.gz").read_bytes(),
    "averages.txt": (DATA / "gpt_small_forward_key_averages.txt").read_bytes(),
    "snapshot.pkl": (DATA / "memory_snapshot.pickle").read_bytes(),
    "profile.bin": (DATA / "jax_small.xplane.pb").read_bytes(),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_capture_is_never_replaced_whatever_it_is_called(
    name: str, train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = tmp_path / name
    evidence.write_bytes(EVIDENCE[name])
    assert main(["kernels", train, "-o", str(evidence)]) == 2
    assert "is a capture already" in capsys.readouterr().err
    assert evidence.read_bytes() == EVIDENCE[name]


@pytest.mark.parametrize(
    "command", [["ops"], ["ops", "--format", "json"], ["kernels"], ["export", "--to", "chrome"]]
)
def test_our_own_answers_may_be_replaced(command: list[str], tmp_path: Path) -> None:
    capture, answer = str(DATA / "healthy.json.gz"), str(tmp_path / "answer.json")
    force = ["--force"] if command[0] == "export" else []
    for _ in range(2):
        assert main([command[0], capture, *command[1:], "-o", answer, *force]) == 0


@pytest.mark.parametrize(
    "command", ["summary", "kernels", "ops", "ranges", "api", "memory", "info"]
)
def test_every_answer_from_a_trace_cut_off_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = gzip.decompress((DATA / "healthy.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    assert main([command, str(cut), "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["meta"]["notes"]
    assert any("cut off" in note for note in notes)


@pytest.mark.parametrize("command", ["ops", "kernels", "summary"])
def test_only_pictures_are_written_to_pictures(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "picture.svg"
    assert main([command, str(DATA / "healthy.json.gz"), "-o", str(out)]) == 2
    assert "cannot write .svg files" in capsys.readouterr().err
    assert not out.exists()


def test_a_capture_without_times_has_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(DATA / "gpt_small_forward_key_averages.txt")
    assert main(["export", table, "--to", "chrome", "-o", str(tmp_path / "t.json")]) == 2
    assert "has no timeline" in capsys.readouterr().err
