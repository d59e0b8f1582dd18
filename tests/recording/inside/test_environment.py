"""Which rank a process has, from what launchers leave in its environment."""

from __future__ import annotations

import pytest

from gpusight.recording.inside.environment import ProcessRank, current_rank, disagreement

SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
SRUN = {**SBATCH, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_RANK": "2",
}
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        (TORCHRUN, ProcessRank(5, 8, "RANK")),
        (OMPI, ProcessRank(2, 4, "OMPI_COMM_WORLD_RANK")),
        (
            {
                "MV2_COMM_WORLD_RANK": "1",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
                "MV2_COMM_WORLD_SIZE": "2",
            },
            ProcessRank(1, 2, "MV2_COMM_WORLD_RANK"),
        ),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"},
            ProcessRank(3, 4, "PMI_RANK"),
        ),
        ({"PMIX_RANK": "6"}, ProcessRank(6, None, "PMIX_RANK")),
        (
            {"JSM_NAMESPACE_RANK": "4", "JSM_NAMESPACE_SIZE": "12"},
            ProcessRank(4, 12, "JSM_NAMESPACE_RANK"),
        ),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, ProcessRank(1, 2, "FLUX_TASK_RANK")),
        ({"ALPS_APP_PE": "9"}, ProcessRank(9, None, "ALPS_APP_PE")),
        (SRUN, ProcessRank(3, 4, "SLURM_PROCID")),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "16"}, ProcessRank(3, 16, "SLURM_PROCID")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ProcessRank(1, 2, "RANK")),
    ],
)
def test_each_launcher(environ: dict[str, str], rank: ProcessRank | None) -> None:
    assert current_rank(environ) == rank


@pytest.mark.parametrize(
    "environ",
    [
        SBATCH,
        {**SBATCH, "SLURM_STEP_ID": str(0xFFFFFFFB)},  # the batch script itself
        {**SBATCH, "SLURM_STEPID": str(0xFFFFFFFA)},  # an interactive allocation
        {"RANK": "0"},  # anybody may call a variable that
        {"RANK": "colonel", "WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": "4"},
        {"PMI_RANK": "-1", "PMI_SIZE": "4"},
        {"PMI_RANK": "4", "PMI_SIZE": "4"},  # contradicts itself
        {"PMIX_RANK": "9" * 40},
    ],
)
def test_what_is_no_launched_process(environ: dict[str, str]) -> None:
    assert current_rank(environ) is None


@pytest.mark.parametrize(
    ("environ", "rank", "source"),
    [
        # srun starts one torchrun a node; each starts eight processes.
        ({**SRUN, **TORCHRUN}, 5, "RANK"),
        ({**OMPI, **TORCHRUN}, 5, "RANK"),
        # mpirun below a batch script, and below srun's daemons.
        ({**SBATCH, **OMPI}, 2, "OMPI_COMM_WORLD_RANK"),
        ({**SRUN, **OMPI}, 2, "OMPI_COMM_WORLD_RANK"),
        # A Kubernetes operator numbers the pods, mpirun the processes.
        ({"RANK": "1", "WORLD_SIZE": "2", **OMPI}, 2, "OMPI_COMM_WORLD_RANK"),
    ],
)
def test_the_innermost_launcher_knows(environ: dict[str, str], rank: int, source: str) -> None:
    found = current_rank(environ)
    assert found is not None
    assert (found.rank, found.source) == (rank, source)


def test_disagreement_is_told() -> None:
    assert disagreement({}) is None
    assert disagreement(OMPI) is None
    assert disagreement({**SRUN, **TORCHRUN}) == (
        "rank 5 is RANK's; SLURM_PROCID=3 of an outer launcher is not used"
    )


@pytest.mark.parametrize(("world", "several"), [("1", False), ("2", True), (None, True)])
def test_one_of_several(world: str | None, several: bool) -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0"} | ({"OMPI_COMM_WORLD_SIZE": world} if world else {})
    rank = current_rank(environ)
    assert rank is not None
    assert rank.is_one_of_several is several


def test_the_environment_is_this_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    rank = current_rank()
    assert rank is not None
    assert rank.rank == 5


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "abc", "LOCAL_RANK": "0"}, "RANK"),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"SLURM_PROCID": "-1", "SLURM_STEP_ID": "0"}, "SLURM_PROCID"),
    ],
)
def test_a_variable_that_tells_no_rank_is_named(environ: dict[str, str], named: str) -> None:
    assert current_rank(environ) is None
    assert (disagreement(environ) or "").startswith(f"{named} is not a rank")


def test_a_bare_variable_that_no_launcher_set_is_nobody_s_business() -> None:
    assert disagreement({"RANK": "abc"}) is None
    assert disagreement({}) is None
