"""Every command through `main`, as a user types it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

import gpusight
from gpusight.analysis import kernel_summary
from gpusight.cli.capture_input import PATIENCE_S, progress
from gpusight.cli.commands import COMMANDS, GROUPS, demo
from gpusight.cli.main import build_parser, main
from gpusight.core.library import core_library
from gpusight.readers.open import open_trace
from gpusight.render import terminal_text
from tests.cli.captures import NAMED, SOURCE
from tests.render.hostile import HOSTILE
from tests.render.test_terminal_tables import Terminal
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
    assert len(out.splitlines()) == 4 + 3 + 1
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
    assert "gpusight kernels: cannot write" in capsys.readouterr().err


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
    ("arguments", "reason"),
    [
        (["kernels", "gone.sqlite", "--format", "json"], "no such file: gone.sqlite"),
        (["diagnose", "--format=json", "gone.sqlite"], "no such file: gone.sqlite"),
        (["compare", "a.sqlite", "--format", "json"], "two sides are needed"),
        (["gate", "gone.sqlite", "--format", "json"], "no such file: gone.sqlite"),
        (["kernels", "gone.sqlite", "--format", "json", "--tpo", "3"], "no option --tpo"),
    ],
)
def test_errors_are_json_where_the_result_would_be(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    error = document["meta"]["error"]
    assert (error["reason"], error["exit_code"]) == (reason, 2)
    assert document["meta"]["command"] == arguments[0]
    assert err.startswith(f"gpusight {arguments[0]}: {reason}")
    assert len(err.splitlines()) == 1
    if arguments[0] == "gate":  # what scripts read
        assert (document["passed"], document["outcome"]) == (False, "error")


@pytest.mark.parametrize(
    "more", [["--format", "table"], ["--format", "json", "-o", "x.json"], ["--", "--format=json"]]
)
def test_other_errors_leave_standard_output_empty(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["kernels", "gone.sqlite", *more]) == 2
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernels", "no_such_file.sqlite"], "no such file"),
        (["kernel"], "did you mean kernels?"),
        (["frobnicate"], "gpusight --help lists the commands"),
        ([__file__], "not a capture"),
        (["kernels", "x.sqlite", "--tpo", "3"], "no option --tpo; did you mean --top?"),
        (["diagnose", "x.sqlite", "--detials"], "did you mean --details?"),
        (["explain", "lanch-bound"], "no rule 'lanch-bound'; did you mean launch-bound?"),
        (["help", "kernel"], "did you mean kernels?"),
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
    assert re.match(r"gpusight(?: \w+)?: ", err)
    assert arguments[0] not in COMMANDS or err.startswith(f"gpusight {arguments[0]}: ")
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
    assert "\nStart:\n  diagnose" in capsys.readouterr().err


def test_help_lists_every_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    listed = [line.split()[0] for line in out.splitlines() if re.match(r"  [a-z]+  +\S", line)]
    assert listed == list(COMMANDS) == [name for names in GROUPS.values() for name in names]
    headings = [line.rstrip(":") for line in out.splitlines() if re.match(r"[A-Z][\w ]*:$", line)]
    assert headings == list(GROUPS)
    assert headings[0] == "Start"


def test_help_of_a_command_is_also_under_help(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (["help", "kernels"], ["kernels", "--help"], ["help", "utilisation"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[2].startswith("usage: gpusight utilization")
    with pytest.raises(SystemExit):
        main(["help"])
    assert "\nInspect:\n" in capsys.readouterr().out


def test_a_capture_alone_is_diagnosed(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in ([train], ["diagnose", train]):
        assert main([*words, "--format", "json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("command", [["info"], ["kernels"], []], ids=["info", "kernels", "none"])
def test_what_the_recorder_left_next_to_a_capture_is_read_with_it(
    command: list[str], train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "run.sqlite"
    shutil.copyfile(train, capture)
    sidecars = [tmp_path / f"run.sqlite{suffix}" for suffix in (".pace.json", ".stacks")]
    for path in sidecars:
        path.write_bytes(b"{}")
    assert main([*command, str(capture)]) == 0
    alone = capsys.readouterr().out
    assert main([*command, *map(str, sorted(tmp_path.iterdir()))]) == 0  # as run* does
    assert capsys.readouterr().out == alone
    for path in sidecars:
        assert main([*command, str(path)]) == 2
        error = capsys.readouterr().err.replace("\n", " ")
        assert "belongs to the capture run.sqlite" in error
    program = [sys.executable, "a.py", "a.py.stacks"]
    assert main(["record", "--dry-run", "--with", "cupti", *program]) == 0
    assert "a.py.stacks" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([option])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"gpusight {gpusight.__version__}\n"


@pytest.mark.parametrize("name", ["x.foo", "x.jpg", "x.SVG", "x.tar.gz", "x.v2"])
def test_an_extension_that_cannot_be_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / name
    assert main(["kernels", "no_such_file.sqlite", "-o", str(target)]) == 2
    extension = Path(name).suffix.lower()
    assert capsys.readouterr().err == (
        f"gpusight kernels: cannot write {extension} files; -o takes .txt, .json, .csv or .md\n"
    )
    assert not target.exists()


def test_extensions_depend_on_the_command(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", train, "-o", str(tmp_path / "x.gif")]) == 2
    assert ".csv, .md, .html, .svg, .png or .pdf\n" in capsys.readouterr().err
    for name in ("plain", "x.txt", "x.log"):
        assert main(["kernels", train, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith("Kernels")
    assert main(["kernels", train, "--format", "json", "-o", str(tmp_path / "x.foo")]) == 0
    assert json.loads((tmp_path / "x.foo").read_text())["rows"]


def test_interrupt(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> Trace:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpusight.readers.open.open_trace", interrupted)
    assert main(["kernels", train]) == 130
    assert capsys.readouterr().err == "gpusight kernels: interrupted\n"


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
    assert "gpusight sql: " in capsys.readouterr().err


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
            assert all(" wrote " in line for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ([], "Saves/step"),
        (["nsys"], "Saves/step"),
        (["torch"], "all 4 fixes: "),
        (["ncu"], "Kernel"),
    ],
)
def test_demo_says_what_to_try_next(
    which: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *which]) == 0
    out = capsys.readouterr().out
    assert says in out
    _, _, tried = out.partition("Try next:")
    assert tried
    assert all(len(line) <= 80 for line in tried.splitlines() if "DEMO=" not in line)
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


# Errors on the command line: one line, an exit code, and a traceback only for who asks.


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("at row 3\nof 5"), pl.exceptions.PanicException("at row 3")]
)
def test_a_bug_is_one_line_with_a_code_of_its_own(
    train: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(kernel_summary, "kernels", broken)
    monkeypatch.setenv("GPUSIGHT_DEBUG", "")
    assert main(["kernels", train]) == 70
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert f"internal error: {type(error).__name__}: at row 3; this is a bug" in result.err
    monkeypatch.setenv("GPUSIGHT_DEBUG", "1")
    assert main(["kernels", train]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_too_little_memory_is_no_bug(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kernel_summary, "kernels", broken)
    assert main(["kernels", train]) == 2
    assert "not enough memory; close other programs" in capsys.readouterr().err


def test_every_command_takes_debug() -> None:
    parser = build_parser()
    chosen = next(action for action in parser._actions if action.dest == "command")
    assert isinstance(chosen.choices, dict)
    for name in COMMANDS:
        assert "--debug" in chosen.choices[name].format_help(), name


def test_debug_counts_before_the_name_of_an_action() -> None:
    parser = build_parser()
    for words in (["cache", "--debug"], ["baseline", "--debug", "show", "x"]):
        assert parser.parse_args(words).debug
    assert "debug" not in parser.parse_args(["baseline", "show", "x"])


# What only a process of its own shows: imports, pipes, encodings, terminals.


def run(*arguments: str, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = ["-c", code] if code else ["-m", "gpusight"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTHONUTF8": "1", **env}
    return subprocess.run(
        [sys.executable, *command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout == "gpusight 0.1.0\n"
    done = run("--help")
    assert done.returncode == 0
    assert "kernels" in done.stdout


def test_help_is_shown_on_a_terminal_that_has_only_ascii() -> None:
    done = run("kernels", "--help", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "written /.../ or regex:..." in " ".join(done.stdout.split())


HEAVY = ("polars", "rich", "numpy", "msgspec")


def test_the_parser_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gpusight.cli.main import build_parser; build_parser();"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run(code=code).stdout == "[]\n"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, gpusight; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code=code).stdout == "[]\n"


def test_kernels_need_nothing_that_others_draw_with(train: str) -> None:
    code = (
        "import sys; from gpusight.cli.main import main;"
        "forms = ('table', 'json', 'csv', 'markdown');"
        f"codes = [main(['kernels', {train!r}, '--format', form]) for form in forms];"
        "print(codes, file=sys.stderr);"
        "names = ('rich', 'jinja2', 'vl_convert');"
        "print([m for m in names if m in sys.modules], file=sys.stderr)"
    )
    assert run(code=code).stderr == "[0, 0, 0, 0]\n[]\n"


def test_exit_codes(train: str, graph: str) -> None:
    assert run("kernels", train).returncode == 0
    assert run("kernels", graph).returncode == 2
    failed = run("kernels", "nowhere.sqlite")
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_closed_pipe_is_quiet(train: str) -> None:
    command = f'"{sys.executable}" -m gpusight sql "{train}" "SELECT * FROM api_calls" --top 0'
    done = subprocess.run(
        ["/bin/sh", "-c", f"{{ {command}; echo $? >&2; }} | true"],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "141\n"


def test_an_ascii_terminal_still_gets_its_table(train: str) -> None:
    done = run("kernels", train, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert " us " in done.stdout
    assert done.stdout.isascii()


def test_a_result_prints_in_any_locale() -> None:
    code = f"import gpusight as gs; print(gs.kernels({str(NAMED['demo'])!r}))"
    done = run(code=code, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert " us" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_colours(train: str, tmp_path: Path) -> None:
    import pty

    log = tmp_path / "log"
    for extra, colored in (([], True), (["--no-color"], False)):
        extra = [*extra, "--quiet"]  # on a busy machine progress would be shown
        out = bytearray()

        def read(descriptor: int, out: bytearray = out) -> bytes:
            data = os.read(descriptor, 65536)
            out.extend(data)
            log.write_bytes(bytes(out))
            return data

        code = (
            "import os, sys; os.environ.update(TERM='xterm-256color', COLUMNS='80');"
            "os.environ.pop('NO_COLOR', None);"
            f"sys.path.insert(0, {str(SOURCE.parent)!r}); from gpusight.cli.main import main;"
            f"sys.exit(main(['kernels', {train!r}, *{extra!r}]))"
        )
        status = pty.spawn([sys.executable, "-X", "utf8", "-c", code], read)
        assert status == 0
        assert (b"\x1b[" in out) is colored
        assert ("█".encode() in out) is colored


def test_progress_waits_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATIENCE_S >= 0.5
    quick, slow, piped = Terminal(), Terminal(), Terminal()
    with progress("quick", stream=quick):
        pass
    assert quick.getvalue() == ""
    monkeypatch.setattr("gpusight.cli.capture_input.PATIENCE_S", 0.0)
    import time

    with progress("slow \x1b[31m", stream=slow):
        time.sleep(0.3)
    assert "slow \\x1b[31m" in slow.getvalue()
    assert slow.getvalue().endswith("\r\x1b[K")
    with progress("quiet", quiet=True, stream=piped):
        time.sleep(0.05)
    assert piped.getvalue() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and a shell")
@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [(">/dev/full", 2, "cannot write the output"), (">&-", 0, ""), ("2>&- >/dev/null", 0, "")],
)
def test_streams_that_take_nothing(redirection: str, code: int, says: str, train: str) -> None:
    done = subprocess.run(
        f'"{sys.executable}" -m gpusight kernels "{train}" {redirection}',
        shell=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert says in done.stderr


# Captures whose names are not UTF-8, as anybody may call a file: every form is still written.


ESCAPED = "x\\udcff"


@pytest.fixture(params=["dataload.sqlite", "healthy.json.gz"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    source: str = request.param
    name = os.fsdecode(b"x\xff." + source.partition(".")[2].encode())
    try:
        return str(shutil.copy(DATA / source, tmp_path / name))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("command", ["info", "compare"])
def test_every_form_is_written(
    command: str, form: str, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = [odd, odd] if command == "compare" else [odd]
    assert main([command, *captures, "--format", form]) == 0
    shown = capsys.readouterr().out
    shown.encode()
    target = tmp_path / "answer.txt"
    assert main([command, *captures, "--format", form, "-o", str(target)]) == 0
    assert target.read_bytes()
    if form == "json":
        json.loads(shown)


@pytest.mark.parametrize(("command", "form"), [("diagnose", "html"), ("compare", "html"),
                                               ("compare", "svg")])  # fmt: skip
def test_pages_and_pictures(command: str, form: str, odd: str, tmp_path: Path) -> None:
    target = tmp_path / f"page.{form}"
    captures = [odd, odd] if command == "compare" else [odd]
    assert main([command, *captures, "-o", str(target)]) == 0
    assert ESCAPED in target.read_text(encoding="utf-8")


def test_a_baseline_and_a_gate(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, report = str(tmp_path / "base.json"), tmp_path / "gate"
    assert main(["baseline", "save", odd, "-o", saved, "--format", "json"]) == 0
    capsys.readouterr()
    reports = ("--junit", f"{report}.xml", "--markdown", f"{report}.md", "--format", "json")
    assert main(["gate", "--baseline", saved, *reports, odd]) == 0
    meta = json.loads(capsys.readouterr().out)["meta"]
    assert meta["baseline"] == meta["captures"]
    assert meta["captures"][0].startswith(ESCAPED)


# Nothing that a capture, a file name or an argument holds reaches a terminal as a control.


EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\r\tx\nsecond [bold]b[/bold] :x:\x00\x7f\u2028"
"""A window title, colors, C1, bidi, a carriage return, a tab, a new line and Rich's markup."""
COLORS = re.compile(r"\x1b\[[\d;]*m")
COMMANDS_WITH_NAMES = (
    ["info"],
    ["summary"],
    ["kernels", "--wide"],
    ["kernels", "--format", "markdown"],
    ["ranges"],
    ["api"],
    ["copies"],
    ["steps"],
    ["steps", "--warmup"],
    ["ledger"],
    ["memory"],
    ["utilization"],
    ["occupancy"],
    ["launches"],
    ["diagnose"],
    ["diagnose", "--details"],
    ["explain"],
    ["drill"],
    ["questions"],
    ["timeline"],
    ["ops"],
    ["counters"],
    ["stats"],
    ["stats", "--format", "column"],
    ["sql", 'SELECT name, name AS "\x1b[1m" FROM kernels LIMIT 3'],
    ["sql", "SELECT \x1b[31m"],
    ["sql", "--tables"],
    ["share", "--check"],
    ["compare", "FILE"],
    ["baseline", "save", "-o", "b.json"],
    ["gate", "--baseline", "FILE", "--max", "step_time=+5%"],
    ["whatif", "--speedup", "matmul=2"],
    ["kernels", "--in", EVIL],
    ["kernels", "--process", EVIL],
    ["kernels", "--top", EVIL],
    ["kernels", "--no-such-option" + EVIL],
    ["kernels", "-o", "nowhere/" + EVIL.replace("\x00", "")],
    ["export", "--to", "csv", "-o", "out" + EVIL.replace("\x00", "")],
)


def _poisoned(path: Path) -> Path:
    shutil.copyfile(NAMED["forward"], path)
    with closing(sqlite3.connect(path)) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for table in tables:
            for _, column, declared, *_ in db.execute(f'PRAGMA table_info("{table}")').fetchall():
                if declared == "TEXT" and not (column == "name" and "META_DATA" in table):
                    # At the end, so that what decides about a row stays readable.
                    db.execute(f'UPDATE "{table}" SET "{column}" = "{column}" || ?', (EVIL,))
        db.commit()
    return path


def _poisoned_trace(path: Path) -> Path:
    document = json.loads(gzip.decompress((DATA / "gpt_small_forward.json.gz").read_bytes()))
    for event in document["traceEvents"]:
        event["name"] = str(event.get("name")) + EVIL
        for key, value in event.get("args", {}).items():
            if isinstance(value, str):
                event["args"][key] = value + EVIL
    for device in document.get("deviceProperties", []):
        device["name"] += EVIL
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module", params=["nsys", "torch"])
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    name = os.fsdecode(EVIL.replace("/", "").replace("\x00", "").encode())
    if request.param == "nsys":
        return _poisoned(folder / f"{name}.sqlite")
    return _poisoned_trace(folder / f"{name}.json")


@pytest.mark.parametrize("colored", [False, True], ids=["plain", "colored"])
def test_no_command_prints_controls(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    colored: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal_text, "wants_color", lambda _: colored)
    faults = {}
    for command, *more in COMMANDS_WITH_NAMES:
        place = 1 if command == "baseline" else 0
        more = [os.fsdecode(word.encode()) for word in more]  # as a shell would pass it
        words = [*more[:place], str(capture), *more[place:]]
        main([command, *(str(capture) if word == "FILE" else word for word in words)])
        shown = capsys.readouterr()
        text = COLORS.sub("", shown.out) if colored else shown.out
        controls = {char for char in text + shown.err if char != "\n" and not char.isprintable()}
        if controls or "internal error" in shown.err:
            faults[(command, *more)] = (controls, shown.err)
    assert not faults


@pytest.mark.parametrize("form", ["csv", "json"])
def test_data_on_a_terminal_has_no_controls_either(
    capture: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["kernels", str(capture), "--format", form]) == 0
    shown = capsys.readouterr().out
    assert "[bold]" in shown
    assert not [char for char in shown if char not in "\n\t" and not char.isprintable()]


@pytest.mark.parametrize("columns", [60, 80])
def test_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert max(map(len, listed.splitlines())) <= columns
    words = " ".join(listed.split())
    assert all(f" {name} {module.SUMMARY}" in words for name, module in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_fit_80_columns(name: str) -> None:
    assert all(len(f"  {example}") <= 80 for example in COMMANDS[name].EXAMPLES)


@pytest.mark.skipif(core_library() is None, reason="SQLite reads through ADBC without the core")
@pytest.mark.parametrize(
    ("command", "absent"),
    [
        (["--version"], {"polars", "numpy"}),
        (
            ["stats", "-r", "cuda_gpu_kern_sum", "-f", "csv", "--no-cache"],
            {"numpy", "adbc_driver_manager", "gpusight.naming.demangle", "gpusight.rules"},
        ),
        (["kernels", "--no-cache"], {"adbc_driver_manager", "gpusight.rules.engine"}),
    ],
)
def test_a_command_imports_only_what_it_uses(command: list[str], absent: set[str]) -> None:
    file = [] if command == ["--version"] else [str(DATA / "gpt_small_forward.sqlite")]
    script = (
        "import sys\n"
        "from gpusight.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *command, *file], capture_output=True, text=True, check=True
    )
    assert not absent & set(ran.stderr.split())
