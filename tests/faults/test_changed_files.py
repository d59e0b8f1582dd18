"""Captures that are truncated while they are served: right rows or an error, never a crash."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusight.readers.open import open_trace
from tests.shared import DATA

PROGRAM = """
import json, os, sys
from pathlib import Path
from gpusight.errors import GpusightError
from gpusight.trace.schema import TABLES
from gpusight.readers.open import open_trace
path, found = Path(sys.argv[1]), {}
trace = open_trace(path, cache=False)
names = [name for name in TABLES if trace.has(name)]
os.truncate(path, int(sys.argv[2]))
for name in names:
    try:
        found[name] = trace.table(name).height
    except GpusightError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def _after_truncating(path: Path, size: int) -> dict[str, int | str]:
    """Give rows, or the error, of each table of a capture that is truncated once it is open.

    In a process of its own, which a mapped file would end by a signal.
    """
    command = [sys.executable, "-c", PROGRAM, str(path), str(size)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    document: dict[str, int | str] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("name", ["odd_cpu.nsys-rep", "thrice.ncu-rep"])
def test_reports_that_are_recorded_again(name: str, part: float, tmp_path: Path) -> None:
    path = tmp_path / name
    plain = DATA / name
    packed = DATA / f"{name}.xz"
    path.write_bytes(plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes()))
    with open_trace(path, cache=False) as trace:
        rows = {table: trace.table(table).height for table in ("kernels", "profiles", "os_calls")}
    result = _after_truncating(path, int(path.stat().st_size * part))
    assert result.keys() & rows.keys()
    for table, answer in result.items():
        if isinstance(answer, str):
            assert name in answer
        elif table in rows:
            assert answer == rows[table]
