"""Types that users see: mypy checks this file with the others, and once as user code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typing_extensions import assert_type

import gpusight as gs
from gpusight.render.result_view import ComparisonView, DiagnosisView, LedgerView, WhatIfView
from gpusight.rules.finding import KernelFinding, TimelineFinding
from tests.shared import DATA, REPOSITORY

USER_CODE = """
import gpusight as gs

trace = gs.open("run.sqlite")
reveal_type(gs.diagnose(trace).findings[0].title)
reveal_type(gs.kernels(trace).frame)
reveal_type(gs.diagnose(trace).to_sarif())
gs.kernels(trace, stepz="3-5")
"""


def test_results_have_types() -> None:
    trace = gs.open(DATA / "dataload.sqlite")
    assert_type(trace, gs.Trace)
    assert_type(trace.kernels, pl.DataFrame)
    diagnosis = gs.diagnose(trace)
    assert_type(diagnosis, DiagnosisView)
    assert_type(diagnosis.findings, tuple[KernelFinding | TimelineFinding, ...])
    assert_type(diagnosis.to_dict(), dict[str, Any])
    assert_type(gs.kernels(trace), gs.View)
    assert_type(gs.summary(trace)["kernels"].frame, pl.DataFrame)
    assert_type(gs.ledger(trace), LedgerView)
    assert_type(gs.whatif(trace, graph=True), WhatIfView)
    assert_type(gs.compare(trace, trace), ComparisonView)


@pytest.mark.wide
def test_mypy_knows_them_in_code_of_users(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    environment = {"PATH": ""}  # the package as it is installed, found by its py.typed
    done = subprocess.run(
        [*command, "user.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (REPOSITORY / "src" / "gpusight" / "py.typed").exists()
    revealed = [line.partition('"')[2].rstrip('"') for line in done.stdout.splitlines()[:3]]
    assert revealed == ["str", "polars.dataframe.frame.DataFrame", "dict[str, Any]"], done.stdout
    assert 'Unexpected keyword argument "stepz"' in done.stdout
    assert "Found 1 error" in done.stdout
