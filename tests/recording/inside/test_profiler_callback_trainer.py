"""`gs.ProfilerCallback` in a real `transformers.Trainer`, on the CPU."""

from __future__ import annotations

import copy
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

BATCH = 2


@pytest.fixture(scope="module", autouse=True)
def _package() -> None:
    # Not with the file, which every worker of the suite loads: it takes seconds.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's imports
        assert pytest.importorskip("transformers").Trainer


def transformers() -> Any:
    return sys.modules["transformers"]


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((8,), float(place)), "labels": torch.zeros(8)}


class Model(torch.nn.Module):
    """One matrix product; raises in the batch that it was told to."""

    def __init__(self, fail_in: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.calls, self.fail_in = 0, fail_in

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == self.fail_in:
            raise ZeroDivisionError("the model's own")
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def trainer(callback: Any, *, rows: int = 24, model: Model | None = None, **options: Any) -> Any:
    """Make a trainer whose own files go to `hf`; 24 rows are 12 steps."""
    arguments: dict[str, Any] = {
        "output_dir": "hf",
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **options,
    }
    return transformers().Trainer(
        model=model or Model(),
        args=transformers().TrainingArguments(**arguments),
        train_dataset=Numbers(rows),
        eval_dataset=Numbers(4),
        callbacks=[callback],
    )


def files(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] != "hf")


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def marks(path: Path) -> list[str]:
    return [event["name"] for event in events(path) if event["name"].startswith("ProfilerStep#")]


def trace_of(callback: gs.ProfilerCallback) -> Path:
    return next(path for path in callback.paths if path.name.endswith("trace.json.gz"))


def test_by_default_the_ninth_step_is_recorded(tmp_path: Path) -> None:
    callback = gs.ProfilerCallback()
    trainer(callback).train()
    assert files(tmp_path) == [
        "profiler_output/iteration_9/rank0_key_averages.txt",
        "profiler_output/iteration_9/rank0_trace.json.gz",
    ]
    trace = trace_of(callback)
    assert marks(trace) == ["ProfilerStep#8"]
    assert gs.steps(trace)["steps"].frame["number"].to_list() == [8]
    calls = dict(gs.ops(trace).frame.select("name", "calls").iter_rows())
    assert calls["aten::addmm"] == 1
    assert calls["Optimizer.step#AdamW.step"] == 1


def test_a_step_takes_all_batches_of_its_gradient() -> None:
    callback = gs.ProfilerCallback(wait=1, warmup=1, active=2)
    trainer(callback, gradient_accumulation_steps=3).train()
    assert callback.paths[0].parent.name == "iteration_4"
    calls = dict(gs.ops(callback.paths[0]).frame.select("name", "calls").iter_rows())
    assert calls["aten::addmm"] == 6
    assert calls["Optimizer.step#AdamW.step"] == 2


def test_loading_belongs_to_a_step_and_evaluation_does_not() -> None:
    """Evaluation runs after steps 2 and 4; steps 2 to 4 are recorded, counted from 0."""
    callback = gs.ProfilerCallback(wait=1, warmup=1, active=3)
    trainer(callback, eval_strategy="steps", eval_steps=2).train()
    trace = trace_of(callback)
    assert marks(trace) == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    found = events(trace)
    steps = [e for e in found if e["name"].startswith("ProfilerStep#")]
    load = "enumerate(DataLoader)"

    def inside(step: dict[str, Any], name: str) -> int:
        end = step["ts"] + step["dur"]
        return sum(step["ts"] <= e["ts"] < end for e in found if e["name"].startswith(name))

    assert [inside(step, "aten::addmm") for step in steps] == [1, 1, 1]
    assert [inside(step, load) for step in steps] == [0, 1, 0], "2 and 4 follow an evaluation"
    assert sum(e["name"] == "aten::addmm" for e in found) > 3, "evaluation is in the trace"


def test_a_training_too_short_is_told_before_and_once(tmp_path: Path) -> None:
    callback = gs.ProfilerCallback()
    with pytest.warns(ProfilerWarning, match="needs 9 steps and the run has 3 steps") as warned:
        trainer(callback, max_steps=3).train()
    assert len([w for w in warned if w.category is ProfilerWarning]) == 1
    assert not files(tmp_path)


def test_a_training_that_raises_keeps_what_was_recorded(tmp_path: Path) -> None:
    """The Trainer tells its callbacks nothing: the next training, or the program's end, closes."""
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=4, key_averages=False)
    with pytest.raises(ZeroDivisionError):
        trainer(callback, model=Model(fail_in=4)).train()
    trainer(callback).train()
    assert files(tmp_path) == [
        "profiler_output-2/iteration_5/rank0_trace.json.gz",
        "profiler_output/iteration_3/rank0_trace.json.gz",
    ]
    assert [path.parent.parent.name for path in callback.paths] == [
        "profiler_output",
        "profiler_output-2",
    ]


def test_training_twice_makes_two_folders(tmp_path: Path) -> None:
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=1, key_averages=False)
    runs = trainer(callback, max_steps=3)
    runs.train()
    runs.train()
    assert files(tmp_path) == [
        "profiler_output-2/iteration_2/rank0_trace.json.gz",
        "profiler_output/iteration_2/rank0_trace.json.gz",
    ]


def test_numbers_go_on_after_a_resume() -> None:
    first = trainer(gs.ProfilerCallback(), max_steps=4, save_strategy="steps", save_steps=4)
    with pytest.warns(ProfilerWarning):
        first.train()
    callback = gs.ProfilerCallback("resumed", wait=1, warmup=1, active=1)
    trainer(callback, max_steps=12).train(resume_from_checkpoint="hf/checkpoint-4")
    assert callback.paths[0].parent.name == "iteration_7"
    assert marks(callback.paths[0]) == ["ProfilerStep#6"]


def test_early_stopping_leaves_what_was_recorded() -> None:
    class Stop(transformers().TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            control.should_training_stop = state.global_step >= 3

    callback = gs.ProfilerCallback(wait=0, warmup=1, active=4)
    runs = trainer(callback)
    runs.add_callback(Stop())
    with pytest.warns(ProfilerWarning, match="needs 5 steps and the run has 3 steps"):
        runs.train()
    assert callback.paths[0].parent.name == "iteration_3"


def test_ranks_are_the_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = transformers().TrainingArguments
    monkeypatch.setattr(arguments, "process_index", property(lambda _: 3))
    monkeypatch.setattr(arguments, "world_size", property(lambda _: 4))
    runs = [gs.ProfilerCallback(ranks=ranks, wait=0, warmup=1, active=1) for ranks in ([0], [3])]
    for callback in runs:
        args = arguments(output_dir="hf", report_to=[], use_cpu=True)
        state = transformers().TrainerState(max_steps=10)
        callback.on_train_begin(args, state, transformers().TrainerControl())
        for _ in range(2):
            callback.on_step_begin()
            callback.on_step_end(args, state, transformers().TrainerControl())
        callback.on_train_end(args, state, transformers().TrainerControl())
    assert {Path(name).name for name in files(tmp_path)} == {
        "rank3_trace.json.gz",
        "rank3_key_averages.txt",
    }


# The class ------------------------------------------------------------------------------------


class Mine(gs.ProfilerCallback):
    """What somebody derives."""

    def __init__(self, label: str) -> None:
        super().__init__(f"out-{label}", wait=0, warmup=1, active=1)
        self.label = label


def test_instances_are_what_each_framework_wants() -> None:
    callback = gs.ProfilerCallback()
    assert isinstance(callback, gs.ProfilerCallback)
    assert isinstance(callback, transformers().TrainerCallback)
    assert type(callback) is type(gs.ProfilerCallback()), "one class for each combination"
    callback = Mine("a")
    assert isinstance(callback, Mine)
    assert isinstance(callback, transformers().TrainerCallback)


def test_a_derived_class_works(tmp_path: Path) -> None:
    trainer(Mine("a"), max_steps=3).train()
    assert {Path(name).parts[0] for name in files(tmp_path)} == {"out-a"}


def test_copies_and_pickles_keep_settings_and_class() -> None:
    for callback in (gs.ProfilerCallback("there", wait=7), Mine("b")):
        for same in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
            assert type(same) is type(callback)
            assert same.settings == callback.settings
            assert same.paths == ()


def test_made_before_the_framework_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer wants events only, not a class: each version more of them."""
    for name in ("transformers.trainer_callback", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    callback = gs.ProfilerCallback(wait=0, warmup=1, active=1)
    assert type(callback) is gs.ProfilerCallback
    assert callback.on_push_begin("anything") is None
    with pytest.raises(AttributeError, match="nope"):
        callback.nope()
    trainer(callback, max_steps=3).train()
    assert callback.paths
