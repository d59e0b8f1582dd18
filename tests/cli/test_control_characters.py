"""Nothing that a capture, a file name or an argument holds reaches a terminal as a control."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gpusight.cli.main import main
from gpusight.render import terminal_tables
from tests.cli.captures import NAMED
from tests.shared import DATA

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\r\tx\nsecond [bold]b[/bold] :x:\x00\x7f\u2028"
"""A window title, colors, C1, bidi, a carriage return, a tab, a new line and Rich's markup."""
COLORS = re.compile(r"\x1b\[[\d;]*m")
COMMANDS = (
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
    ["utilisation"],
    ["occupancy"],
    ["launches"],
    ["diagnose"],
    ["diagnose", "--explain"],
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


@pytest.mark.usefixtures("digests_made_once")
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
    monkeypatch.setattr(terminal_tables, "wants_color", lambda _: colored)
    faults = {}
    for command, *more in COMMANDS:
        place = 1 if command == "baseline" else 0
        more = [os.fsdecode(word.encode()) for word in more]  # as a shell would pass it
        words = [*more[:place], str(capture), *more[place:]]
        main([command, *(str(capture) if word == "FILE" else word for word in words)])
        shown = capsys.readouterr()
        text = COLORS.sub("", shown.out) if colored else shown.out
        found = {char for char in text + shown.err if char != "\n" and not char.isprintable()}
        if found or "internal error" in shown.err:
            faults[(command, *more)] = (found, shown.err)
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
