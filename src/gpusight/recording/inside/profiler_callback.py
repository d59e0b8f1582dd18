"""`gs.ProfilerCallback`: records some steps of a Hugging Face or Lightning training."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gpusight.recording.inside.step_recorders import warn
from gpusight.recording.inside.torch_session import TorchSession
from gpusight.recording.inside.torch_settings import OUTPUT_DIR, TorchSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self, Unpack

    from gpusight.recording.inside.torch_settings import ScheduledTorchOptions


_BASES = {
    "transformers.trainer_callback": "TrainerCallback",
    "lightning.pytorch": "Callback",
    "pytorch_lightning": "Callback",
}
"""Where each framework keeps the class that it wants callbacks to derive from."""
_KINDS: dict[tuple[type, tuple[str, ...]], type] = {}


class ProfilerCallback:
    """Give one to the Trainer; it records with torch.profiler and leaves files per cycle and rank.

    `Trainer(..., callbacks=[gs.ProfilerCallback()])` for `transformers`, `lightning.pytorch` and
    `pytorch_lightning` alike. Without options it waits for 4 steps, warms up for 4 and records the
    9th; see `gs.torch_profile` for the options and the files, and `mode` for runs under nsys or
    ncu. Steps are numbered as the framework does, also after a resume.

    Lightning takes only what derives from its own class, so an instance derives from the callback
    classes of those frameworks that were imported before it was made.
    """

    def __new__(cls, *_args: object, **_options: object) -> Self:
        """Make an instance that every framework in this process takes for its own."""
        imported = tuple(module for module in _BASES if module in sys.modules)
        return object.__new__(_kind(cls, imported))

    def __init__(
        self,
        output_dir: str | os.PathLike[str] = OUTPUT_DIR,
        **options: Unpack[ScheduledTorchOptions],
    ) -> None:
        super().__init__()
        self.settings = TorchSettings(output_dir, **options)
        self._session: TorchSession | None = None
        self._paths: list[Path] = []
        self._stepped_before = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were written, those of earlier trainings first."""
        return (*self._paths, *(self._session.paths if self._session else ()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings; what is being recorded stays in this process."""
        modules = tuple(m for m in _BASES if m in sys.modules and isinstance(self, _base(m)))
        state = {**self.__dict__, "_session": None}
        return _rebuilt, (_DECLARED.get(type(self), type(self)), modules), state

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Ignore events that only some versions of the frameworks have."""
        if name.startswith("on_"):
            return lambda *_args, **_more: None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _end(self, *, failed: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(failed=failed)
            self._paths += session.paths

    def on_train_end(self, *_args: object, **_more: object) -> None:
        """Close up; both frameworks call this, with other arguments."""
        self._end()

    # Hugging Face ---------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, *_more: Any, **_kwargs: Any) -> None:
        """Start counting from the step that training starts or resumes at."""
        self._end(failed=True)  # a training before this one that raised
        first = int(state.global_step)
        self._session = TorchSession(
            self.settings,
            place=(args.process_index, args.world_size),
            first_step=first,
            total_steps=state.max_steps - first if state.max_steps > 0 else None,
        )

    def on_step_begin(self, *_args: object, **_more: object) -> None:
        """Begin a step, if nothing before did: an epoch begins by loading its first batch."""
        if self._session is not None:
            self._session.begin_step()

    on_epoch_begin = on_train_epoch_start = on_train_batch_start = on_step_begin

    def on_step_end(
        self,
        args: Any,  # noqa: ARG002 - named as in the class that this overrides
        state: Any,
        control: Any,
        **_kwargs: Any,
    ) -> None:
        """End the step, and begin the next one unless something else comes first."""
        stops = control.should_training_stop or control.should_epoch_stop
        ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
        other = stops or ends_epoch or control.should_evaluate or control.should_save
        self._step_ends(another_follows=not other)

    # Lightning ------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start counting; the sanity check of validation is over by now."""
        self._end(failed=True)
        first = int(trainer.global_step)
        self._stepped_before = first
        total = _lightning_steps(trainer, module)
        self._session = TorchSession(
            self.settings,
            place=(trainer.global_rank, trainer.world_size),
            first_step=first,
            total_steps=None if total is None else max(0, total - first),
        )

    def on_train_batch_end(
        self, trainer: Any, module: Any, _outputs: Any, _batch: Any, batch: int, *_more: Any
    ) -> None:
        """End the step if an optimizer stepped, and begin the next one."""
        stepped = int(trainer.global_step)
        if module.automatic_optimization and stepped == self._stepped_before:
            return
        self._stepped_before = stepped
        self._step_ends(another_follows=not _lightning_pauses(trainer, batch))

    def teardown(self, *_args: object, **_more: object) -> None:
        """Write what there is, whatever way the run ended."""
        self._end(failed=True)

    on_exception = teardown

    # Both -----------------------------------------------------------------------------------------

    def _step_ends(self, *, another_follows: bool) -> None:
        if self._session is not None:
            self._session.end_step()
            if another_follows:
                self._session.begin_step()


def _lightning_steps(trainer: Any, module: Any) -> int | None:
    """Return how many steps Lightning plans, None where it cannot know."""
    planned = trainer.num_training_batches * (trainer.max_epochs or 1)
    if module.automatic_optimization:
        try:
            planned = trainer.estimated_stepping_batches
        except Exception as error:  # noqa: BLE001 - Lightning 1's, where accumulation changes
            warn(f"the number of training steps is unknown: {error}")
            return None
    return int(planned) if 0 <= planned < float("inf") else None


def _lightning_pauses(trainer: Any, batch: int) -> bool:
    """Return whether validation, the end of an epoch or of training comes after this batch."""
    if trainer.is_last_batch or trainer.should_stop:
        return True
    if 0 <= trainer.max_steps <= trainer.global_step:
        return True
    interval = trainer.val_check_batch
    if not trainer.enable_validation or interval is None or interval == float("inf"):
        return False
    of_run = trainer.check_val_every_n_epoch is None
    number = trainer.fit_loop.total_batch_idx if of_run else batch
    return bool((number + 1) % interval == 0)


def _base(module: str) -> type:
    """Return the class that an imported framework wants callbacks to derive from."""
    base: type = getattr(sys.modules[module], _BASES[module])
    return base


def _kind(cls: type, modules: tuple[str, ...]) -> type:
    """Derive a class from these frameworks' too, once for each combination."""
    kind = _KINDS.get((cls, modules))
    if kind is None:
        missing = [base for base in map(_base, modules) if not issubclass(cls, base)]
        kind = cls
        if missing:
            names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            kind = type(cls.__name__, (cls, *missing), {**names, "__doc__": cls.__doc__})
            _DECLARED[kind] = cls
        _KINDS[cls, modules] = kind
    return kind


_DECLARED: dict[type, type] = {}
"""From a derived class to the one that somebody wrote."""


def _rebuilt(cls: type, modules: tuple[str, ...]) -> object:
    """Make an unpickled instance; the process that reads it may have imported nothing yet."""
    for module in modules:
        importlib.import_module(module)
    return object.__new__(_kind(cls, modules))
