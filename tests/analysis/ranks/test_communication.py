"""Exposed communication, pairs, stages and experts, compared with what a simulator planted.

Halves have different seeds; the code was written with the design half alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpusight.analysis.ranks.exposed_reasons import REASONS, UNKNOWN
from gpusight.analysis.ranks.job_ranks import JobRanks, job_ranks
from gpusight.analysis.ranks.job_whatif import ranks_whatif
from gpusight.analysis.ranks.rank_digest import decode_digests, encode_digests, rank_digests
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from tests.analysis.ranks.simulated_streams import (
    ExpertJob,
    ExposedJob,
    PipelineJob,
    Rank,
    expert_job,
    exposed_job,
    pipeline_job,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest

DESIGN, HELD_OUT = range(6), range(1000, 1006)
SEEDS = [*DESIGN, *HELD_OUT]


# Each job is simulated and answered once for all tests: that is most of their time.
@lru_cache
def exposed(reason: str, seed: int) -> tuple[ExposedJob, JobRanks]:
    planted = exposed_job(reason, seed)
    return planted, answer(planted.ranks)


@lru_cache
def pipeline(seed: int, slow: float = 1.0) -> tuple[PipelineJob, JobRanks]:
    planted = pipeline_job(seed, slow=slow)
    return planted, answer(planted.ranks)


@lru_cache
def experts(seed: int, spread: float) -> tuple[ExpertJob, JobRanks]:
    planted = expert_job(seed, spread)
    return planted, answer(planted.ranks)


def answer(ranks: Sequence[Rank]) -> JobRanks:
    digests: list[RankDigest] = []
    for rank in ranks:
        made = rank_digests(rank.trace())
        assert not isinstance(made, NotApplicable), made
        digests += made
    job = job_ranks(decode_digests(encode_digests(digests)))
    assert isinstance(job, JobRanks)
    return job


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != UNKNOWN])
def test_the_planted_reason_explains_most_of_the_exposed_time(reason: str, seed: int) -> None:
    planted, job = exposed(reason, seed)
    found = job.communication
    assert found is not None
    steps = 6
    for overlap, exposed_ns in zip(found.ranks, planted.exposed_ns, strict=True):
        assert overlap.exposed_ns * steps == pytest.approx(exposed_ns, rel=1e-6)
        assert sum(overlap.reasons.values()) == pytest.approx(overlap.exposed_ns, abs=len(REASONS))
        assert next(iter(overlap.reasons)) == reason
        assert overlap.reasons[reason] >= 0.8 * overlap.exposed_ns
    assert found.collectives[0].reason == reason


@pytest.mark.parametrize("seed", SEEDS)
def test_hidden_collectives_have_no_reason(seed: int) -> None:
    found = exposed("dependency", seed)[1].communication
    assert found is not None
    for one in found.collectives:
        assert one.exposed_ns <= one.duration_ns
        assert (one.reason is None) == (one.exposed_ns == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pipeline_has_its_stages_microbatches_and_bubbles(seed: int) -> None:
    planted, job = pipeline(seed)
    assert job.balance is not None
    found = job.balance.pipeline
    assert found is not None
    assert [stage.ranks for stage in found.stages] == [(n,) for n in range(planted.stages)]
    assert found.microbatches == planted.microbatches
    stages, batches = planted.stages, planted.microbatches
    assert found.ideal_bubble_share == (stages - 1) / (batches + stages - 1)
    step_ns = float(job.meta["step_ns"])
    for stage, compute_ns, bubble_ns in zip(
        found.stages, planted.compute_ns, planted.bubble_ns, strict=True
    ):
        assert stage.compute_ns == pytest.approx(compute_ns, rel=1e-3)
        assert stage.bubble_ns == pytest.approx(bubble_ns, abs=0.05 * step_ns)
    share = float(np.mean(planted.bubble_ns)) / step_ns
    assert found.bubble_share == pytest.approx(share, abs=0.03)
    assert found.imbalance_ns <= 0.02 * step_ns
    assert "PP" in [one["kind"] for one in job.meta["parallelism"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_stage_is_an_imbalance(seed: int) -> None:
    planted, job = pipeline(seed, slow=1.5)
    assert job.balance is not None
    assert job.balance.pipeline is not None
    beyond = max(planted.compute_ns) - float(np.mean(planted.compute_ns))
    assert job.balance.pipeline.imbalance_ns == pytest.approx(beyond, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_stage_is_a_straggler_and_balanced_stages_are_none(seed: int) -> None:
    balanced, slow = pipeline(seed)[1], pipeline(seed, slow=1.5)[1]
    assert all(one.share <= 0.05 for one in balanced.stragglers)
    assert slow.stragglers[0].rank == len(slow.ranks) - 1
    saved_ns = float(slow.meta["step_ns"]) - float(balanced.meta["step_ns"])
    assert slow.stragglers[0].recoverable_ns == pytest.approx(saved_ns, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_balanced_stages_are_as_fast_as_the_simulator_makes_them(seed: int) -> None:
    """The same work, evenly divided: compute of all stages grows from that of the balanced job."""
    (balanced, after), (slow, before) = pipeline(seed), pipeline(seed, slow=1.5)
    assert abs(before.meta["simulation_error"]) < 0.01
    work = sum(slow.compute_ns) / sum(balanced.compute_ns)
    expected_ns = float(after.meta["step_ns"]) * work
    found = ranks_whatif(before.digests, [("balance", "stages")])
    assert not isinstance(found, NotApplicable)
    assert found.meta["predicted_ns"] == pytest.approx(expected_ns, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_balanced_experts_save_their_imbalance(seed: int) -> None:
    planted, job = experts(seed, 0.3)
    found = ranks_whatif(job.digests, [("balance", "experts")])
    assert not isinstance(found, NotApplicable)
    saved_ns = found.meta["step_ns"] - found.meta["predicted_ns"]
    assert saved_ns == pytest.approx(planted.imbalance_ns, rel=0.05)


@pytest.mark.parametrize("what", ["stages", "experts"])
def test_what_a_job_does_not_have_cannot_be_balanced(what: str) -> None:
    _, job = exposed("dependency", 1)
    with pytest.raises(UsageError, match=f"--balance {what} needs"):
        ranks_whatif(job.digests, [("balance", what)])


@pytest.mark.parametrize("seed", SEEDS)
def test_sends_and_receives_are_matched_by_pair(seed: int) -> None:
    planted, job = pipeline(seed)
    assert job.communication is not None
    pairs = {(pair.source, pair.target): pair for pair in job.communication.pairs}
    assert {ends: pair.per_step for ends, pair in pairs.items()} == planted.transfers
    assert all(pair.transfer_ns == pytest.approx(20_000, abs=5_000) for pair in pairs.values())
    assert all(pair.bytes == planted.microbatches * (1 << 20) for pair in pairs.values())
    assert job.meta["collectives_unmatched"] == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_experts_have_their_imbalance(spread: float, seed: int) -> None:
    planted, job = experts(seed, spread)
    assert job.balance is not None
    (group,) = job.balance.experts
    assert group.ranks == tuple(range(len(planted.ranks)))
    assert group.layers == planted.layers
    expected = dict(enumerate(planted.expert_ns))
    assert dict(group.expert_ns) == pytest.approx(expected, abs=20_000 * planted.layers)
    assert group.imbalance_ns == pytest.approx(planted.imbalance_ns, abs=10_000 * planted.layers)


def test_without_collectives_nothing_is_claimed() -> None:
    rank = Rank(0, 1)
    for number in range(3):
        begin = rank.host
        rank.synchronize(rank.compute("gemm", 1_000_000))
        rank.step(number, begin, rank.host)
    job = answer([rank])
    assert job.communication is not None
    assert job.communication.collectives == ()
    assert job.communication.ranks[0].hidden_share is None
    assert job.document()["pipeline"] is None
    assert job.document()["experts"] == []
