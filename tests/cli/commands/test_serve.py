"""`gpusight serve` as a process: it says where it is, answers there only, and stops when told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpusight.cli.commands import serve as command
from gpusight.cli.main import main
from tests.cli.captures import NAMED, SOURCE
from tests.shared import DATA

STOPS_WITHIN_S = 3.0
"""It takes a third of a second; tests share the machine."""
_LINE = re.compile(r"(http://127\.0\.0\.1:(\d+)/([\w-]{20,})/)  \(Ctrl-C to stop\)\n")


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; it must have ended when the test does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpusight", "serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    """Read the line that says where it is."""
    assert process.stdout is not None
    result = _LINE.fullmatch(process.stdout.readline())
    assert result is not None
    return result[1]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def states(url: str) -> list[str]:
    return [capture["state"] for capture in get(f"{url}api/captures")["captures"]]


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal; gives the exit code and what was printed afterwards."""
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < STOPS_WITHIN_S
    return process.returncode, out, err


posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_told_to_stop(number: signal.Signals, train: str) -> None:
    with serving(train) as process:
        url = address(process)
        while states(url) == ["reading"]:
            time.sleep(0.02)
        info = get(f"{url}api/captures/0")
        assert info["name"] == "demo.sqlite"
        assert info["tool"].startswith("Nsight Systems")
        assert ended(process, number) == (0, "", "")
        with pytest.raises(urllib.error.URLError):
            get(f"{url}api/captures")


@posix
def test_it_stops_while_it_reads(train: str) -> None:
    with serving(train, "--no-cache") as process:
        address(process)
        assert ended(process, signal.SIGINT) == (0, "", "")


@posix
def test_a_file_that_fails_is_named_and_the_others_are_shown(train: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(Path(train).read_bytes()[:5000])
    with serving(str(broken), train) as process:
        url = address(process)
        while "reading" in states(url):
            time.sleep(0.02)
        assert states(url) == ["failed", "ready"]
        time.sleep(0.3)
        code, out, err = ended(process, signal.SIGINT)
        assert (code, out) == (0, "")
        assert err.startswith("gpusight serve: ")
        assert "broken.sqlite" in err
        assert err.count("\n") == 1


def test_a_port_that_is_taken(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", train, "--port", str(port)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpusight serve: port {port} is in use; ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.sqlite"], "no such file: nowhere.sqlite"),
        (["nowhere.sqlite", "neither.json"], "no such file: nowhere.sqlite"),
        ([__file__], "is not a capture"),
        ([str(DATA / "thrice.ncu-rep.xz")], "gpusight diagnose"),
        ([str(DATA / "thrice.ncu-rep.xz"), "nowhere.sqlite"], "no such file: nowhere.sqlite"),
        ([str(NAMED["demo"]), "--port", "65536"], "is not a port"),
        ([str(NAMED["demo"]), "--port", "-1"], "is not a whole number"),
        ([], "required"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpusight serve: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_capture_that_turns_out_to_have_no_timeline_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", str(DATA / "gpt_small_forward_key_averages.txt")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gpusight serve: ")
    assert "timeline" in err
    assert err.count("\n") == 1


def test_large_blocks_are_returned_once_all_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is quicker while the C library keeps them; looking around for hours needs less."""
    ticks: list[str] = []
    finished = iter((False, False, True, True))

    class Ticking(threading.Event):
        def wait(self, _: float | None = None) -> bool:
            ticks.append("tick")
            return ticks.count("tick") > 4

    class Computing:
        failures: tuple[str, ...] = ()
        is_finished = property(lambda _: next(finished))

        def check(self) -> None:
            pass

    returned = "gpusight.web.pool.return_large_blocks"
    monkeypatch.setattr(returned, lambda: ticks.append("returned"))
    command._wait(Computing(), Ticking())  # type: ignore[arg-type]
    assert ticks == ["tick", "tick", "tick", "returned", "tick", "tick"]
