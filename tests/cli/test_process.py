"""What only a process of its own shows: imports, pipes, encodings, terminals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.capture_input import PATIENCE_S, progress
from tests.cli.captures import SOURCE
from tests.render.test_text import Terminal

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_kernels_need_nothing_that_others_draw_with(form: str, train: str) -> None:
    code = (
        "import sys; from gpusight.cli.main import main;"
        f"main(['kernels', {train!r}, '--format', {form!r}]);"
        "names = ('rich', 'numpy', 'jinja2', 'vl_convert');"
        "print([m for m in names if m in sys.modules], file=sys.stderr)"
    )
    assert run(code=code).stderr == "[]\n"


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_colours(train: str, tmp_path: Path) -> None:
    import pty

    log = tmp_path / "log"
    for extra, colored in (([], True), (["--no-color"], False)):
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
    [(">/dev/full", 2, "cannot write the answer"), (">&-", 0, ""), ("2>&- >/dev/null", 0, "")],
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
