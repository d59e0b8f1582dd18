"""`gs.ProfilerCallback` in a real Lightning Trainer of either package, on the CPU."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import gpusight as gs
from gpusight.recording.inside.torch_settings import ProfilerWarning

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
TRAINER = "transformers.trainer_callback"

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '[a-z]+_dataloader' does not have many workers"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
]


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    # Not with the file, which every worker of the suite loads: it takes seconds.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's imports
        for name in (*PACKAGES, TRAINER):
            pytest.importorskip(name)


def made_module(package: str, *, manual: bool = False, fail_in: int | None = None) -> Any:
    """Make a module of a package: one matrix product, and a failure in the batch asked for."""

    class Module(sys.modules[package].LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
            self.automatic_optimization = not manual
            self.calls = 0

        def training_step(self, batch: torch.Tensor, _place: int) -> torch.Tensor:
            self.calls += 1
            if self.calls == fail_in:
                raise ZeroDivisionError("the module's own")
            loss: torch.Tensor = self.layer(batch).pow(2).mean()
            if manual:
                first, second = self.optimizers()
                for optimizer in (first, second):
                    optimizer.zero_grad()
                self.manual_backward(loss)
                first.step()
                second.step()
            return loss

        def validation_step(self, batch: torch.Tensor, _place: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> Any:
            made = [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(1 + manual)]
            return made if manual else made[0]

    return Module()


def fit(
    callback: Any,
    *,
    package: str = PACKAGES[0],
    module: Any = None,
    checkpoint: Any = None,
    **more: Any,
) -> Any:
    """Train on 12 batches an epoch, validate on 2."""
    options = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        **more,
    }
    trainer = sys.modules[package].Trainer(callbacks=[callback], **options)
    rows = torch.utils.data.DataLoader(torch.ones(24, 8), batch_size=2)  # type: ignore[arg-type, var-annotated]
    few = torch.utils.data.DataLoader(torch.ones(4, 8), batch_size=2)  # type: ignore[arg-type, var-annotated]
    module = module or made_module(package)
    trainer.fit(module, rows, few, ckpt_path=checkpoint)
    return trainer


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def marks(path: Path) -> list[str]:
    return [event["name"] for event in events(path) if event["name"].startswith("ProfilerStep#")]


def calls(path: Path) -> dict[str, int]:
    return dict(gs.ops(path).frame.select("name", "calls").iter_rows())


@pytest.mark.parametrize("name", PACKAGES)
def test_by_default_the_ninth_step_is_recorded(tmp_path: Path, name: str) -> None:
    callback = gs.ProfilerCallback()
    fit(callback, package=name)
    assert files(tmp_path) == [
        "profiler_output/iteration_9/rank0_key_averages.txt",
        "profiler_output/iteration_9/rank0_trace.json.gz",
    ]
    trace = callback.paths[0]
    assert gs.steps(trace)["steps"].frame["number"].to_list() == [8]
    assert calls(trace)["aten::addmm"] == 1
    assert calls(trace)["Optimizer.step#SGD.step"] == 1


@pytest.mark.parametrize("name", PACKAGES)
def test_one_package_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has imported nothing else."""
    for other in (TRAINER, *PACKAGES):
        if other != name:
            monkeypatch.delitem(sys.modules, other)
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=1)
    assert len(type(callback).__bases__) == 2
    assert isinstance(callback, sys.modules[name].Callback)
    again = pickle.loads(pickle.dumps(callback))
    assert type(again) is type(callback)
    fit(again, package=name, max_steps=3)
    assert again.paths


def test_an_instance_serves_all_frameworks() -> None:
    kind = type(gs.ProfilerCallback())
    for name in PACKAGES:
        assert issubclass(kind, sys.modules[name].Callback)
    assert issubclass(kind, sys.modules[TRAINER].TrainerCallback)
    assert kind.__name__ == kind.__qualname__ == "ProfilerCallback"


def test_a_step_takes_all_batches_of_its_gradient() -> None:
    callback = gs.ProfilerCallback(wait=1, warmup=1, active=2)
    fit(callback, accumulate_grad_batches=3)
    assert callback.paths[0].parent.name == "iteration_4"
    assert calls(callback.paths[0])["aten::addmm"] == 6
    assert calls(callback.paths[0])["Optimizer.step#SGD.step"] == 2


def test_with_manual_optimization_a_step_is_a_batch() -> None:
    callback = gs.ProfilerCallback(wait=1, warmup=1, active=2)
    fit(callback, module=made_module(PACKAGES[0], manual=True))
    assert callback.paths[0].parent.name == "iteration_4"
    assert calls(callback.paths[0])["aten::addmm"] == 2
    assert calls(callback.paths[0])["Optimizer.step#SGD.step"] == 4


def test_validation_belongs_to_no_step() -> None:
    """It runs after every second batch and before training; steps 1 to 3 are recorded."""
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=3)
    fit(callback, limit_val_batches=2, val_check_interval=2, num_sanity_val_steps=2)
    trace = callback.paths[0]
    assert marks(trace) == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
    found = events(trace)
    products = [event["ts"] for event in found if event["name"] == "aten::addmm"]
    steps = [e for e in found if e["name"].startswith("ProfilerStep#")]
    inside = [sum(s["ts"] <= ts < s["ts"] + s["dur"] for ts in products) for s in steps]
    assert inside == [1, 1, 1]
    assert len(products) == 3 + 2, "validation between them is in the trace"


def test_loading_belongs_to_the_step() -> None:
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=2)
    fit(callback)
    found = events(callback.paths[0])
    loads = [e["ts"] for e in found if e["name"].startswith("enumerate(DataLoader)")]
    steps = [e for e in found if e["name"].startswith("ProfilerStep#")]
    assert [sum(s["ts"] <= ts < s["ts"] + s["dur"] for ts in loads) for s in steps] == [1, 1]


def test_an_exception_passes_on_and_what_is_complete_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=4)
    with pytest.raises(ZeroDivisionError):
        fit(callback, module=made_module(PACKAGES[0], fail_in=4))
    assert callback.paths[0].parent.name == "iteration_3"
    assert "the last cycle holds 2 of 4 steps" in capsys.readouterr().err


def test_a_training_too_short_is_told_before(tmp_path: Path) -> None:
    with pytest.warns(ProfilerWarning, match="needs 9 steps and the run has 3 steps") as caught:
        fit(gs.ProfilerCallback(), max_steps=3)
    assert len([w for w in caught if w.category is ProfilerWarning]) == 1
    assert not files(tmp_path)


def test_fitting_twice_makes_two_folders(tmp_path: Path) -> None:
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=1, key_averages=False)
    for _ in range(2):
        fit(callback, max_steps=3)
    assert files(tmp_path) == [
        "profiler_output-2/iteration_2/rank0_trace.json.gz",
        "profiler_output/iteration_2/rank0_trace.json.gz",
    ]


def test_numbers_go_on_after_a_resume(tmp_path: Path) -> None:
    module = made_module(PACKAGES[0])
    with pytest.warns(ProfilerWarning):
        trainer = fit(gs.ProfilerCallback(), module=module, max_steps=4)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    callback = gs.ProfilerCallback("resumed", wait=1, warmup=1, active=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
        fit(callback, checkpoint=tmp_path / "saved.ckpt", max_epochs=2)
    assert callback.paths[0].parent.name == "iteration_7"
    assert marks(callback.paths[0]) == ["ProfilerStep#6"]


def test_ranks_are_the_frameworks(tmp_path: Path) -> None:
    class Trainer:
        global_step, global_rank, world_size, estimated_stepping_batches = 0, 3, 4, 10
        is_last_batch = should_stop = enable_validation = False
        max_steps, val_check_batch, num_training_batches, max_epochs = -1, None, 10, 1

    class Module:
        automatic_optimization = True

    for ranks in ([0], [3]):
        callback, trainer = gs.ProfilerCallback(ranks=ranks, wait=0, warmup=1, active=1), Trainer()
        callback.on_train_start(trainer, Module())
        for place in range(2):
            callback.on_train_batch_start(trainer, Module(), None, place)
            trainer.global_step += 1
            callback.on_train_batch_end(trainer, Module(), None, None, place)
        callback.on_train_end(trainer, Module())
    assert {Path(name).name for name in files(tmp_path)} == {
        "rank3_trace.json.gz",
        "rank3_key_averages.txt",
    }
