"""`gpusight whatif --ranks`: all ranks of a job with changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpusight.cli.main import main
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.test_rank_files import write_torch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_all_ranks_of_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    plan = lambda rank, _: Delay(host_ns=6 * MS) if rank == 1 else NONE  # noqa: E731
    for rank, trace in enumerate(job_traces(plan, ranks=3, steps=8)):
        write_torch(trace, tmp_path / f"trace.rank{rank}.json.gz")
    assert main(["whatif", "--ranks", str(tmp_path), "--no-cache"]) == 0
    shown = capsys.readouterr().out
    assert "rank 1 as fast as the median" in shown
    assert max(map(len, shown.splitlines())) <= 80
    command = ["whatif", "--ranks", str(tmp_path), "--no-cache", "--format", "json"]
    assert main([*command, "--as-median", "1", "--balance", "ranks"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["change"] == "rank 1 as fast as the median"
    for arguments, message in (
        (["--ranks", str(tmp_path), "--gradients", "bf16"], "needs collectives of gradients"),
        (["--ranks", str(tmp_path), "--device", "0"], "does not apply to --ranks"),
        (["x.json", "--ranks", str(tmp_path)], "and --ranks are given"),
        (["x.json", "--bucket", "1GB"], "--bucket needs all ranks"),
        ([], "no capture is given"),
    ):
        assert main(["whatif", *arguments, "--no-cache"]) == 2
        assert message in capsys.readouterr().err
