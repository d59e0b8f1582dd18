"""A job as a page gets it: the heat map, stragglers, and the same collective on other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusight.errors import UsageError
from gpusight.open_job import OpenedJob, open_job
from gpusight.trace.trace import Trace
from gpusight.web.session import Opened
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.shared import DATA
from tests.web.serving import Asking, asking


def opened(ranks: int = 4, most: int | None = None) -> OpenedJob:
    traces = job_traces(lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE, ranks=ranks)
    return open_job(list[Trace | str | Path](traces), most=most)


@pytest.fixture(scope="module")
def job() -> Iterator[Asking]:
    made = opened()
    with asking(Opened("job", made.trace, owned=False, job=made)) as client:
        yield client


def test_the_heat_map_shows_the_late_rank(job: Asking) -> None:
    answer = job.answer("captures/0/ranks")
    assert "rank 2 is late" in answer["headline"]
    assert [q["title"] for q in answer["quantities"]] == [
        "Later than the median rank", "Wait for other ranks", "Step time",
    ]  # fmt: skip
    late = {row["rank"]: [c["levels"][0] for c in row["cells"] if c] for row in answer["rows"]}
    assert min(late[2]) >= 4
    assert max(late[0] + late[1] + late[3]) == 0
    assert [straggler["rank"] for straggler in answer["stragglers"]] == [2]
    assert all(row["shown"] for row in answer["rows"])


def test_steps_are_those_of_the_job_and_the_latest_is_seen_first(job: Asking) -> None:
    info = job.answer("captures/0")
    assert info["job"] is True
    assert len(info["steps"]) == 12
    view = info["first_view"]
    inside = [s for s in info["steps"] if view["start_ns"] <= s["start_ns"] < view["end_ns"]]
    assert inside
    assert any("on one clock" in note for note in info["notes"])


def test_a_collective_leads_to_the_same_one_on_the_other_ranks(job: Asking) -> None:
    cell = job.answer("captures/0/ranks")["rows"][2]["cells"][5]
    span = {"start": cell["start_ns"], "end": cell["end_ns"]}
    spot = job.answer("captures/0/collective", rank=2, **span)
    assert spot["track"].startswith("gpu2/")
    links = job.answer("captures/0/event", table=spot["table"], row=spot["row"])["links"]
    same = {link["relation"]: link["spot"]["track"] for link in links if "same" in link["relation"]}
    assert set(same) == {f"same collective, rank {rank}" for rank in (0, 1, 3)}
    assert same["same collective, rank 3"].startswith("gpu3/")
    assert job.answer("captures/0/collective", rank=2, start=0, end=1) is None


def test_a_capture_is_no_job() -> None:
    with asking(Opened("one", opened().trace, owned=False)) as client:
        assert client.refusal("captures/0/ranks")[0] == 400


def test_of_many_ranks_the_late_one_is_on_the_timeline() -> None:
    made = opened(ranks=6, most=3)
    assert made.trace.source.ranks == [0, 1, 2]
    assert made.left_out == (3, 4, 5)
    with asking(Opened("job", made.trace, owned=False, job=made)) as client:
        rows = client.answer("captures/0/ranks")["rows"]
        assert [row["shown"] for row in rows] == [True, True, True, False, False, False]
        assert "3 of 6 ranks" in client.answer("captures/0")["notes"][0]


def test_digests_alone_have_no_timeline(tmp_path: Path) -> None:
    import gpusight as gs

    path = gs.rank_digest(DATA / "torch_checkpoint.json.gz", tmp_path / "rank0.ranks")
    with pytest.raises(UsageError, match="no timeline"):
        open_job([path])
