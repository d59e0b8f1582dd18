"""`gs.torch_profile`: records some steps of a loop that somebody wrote by hand.

with gs.torch_profile(wait=2, warmup=2, active=3) as prof:
    for batch in loader:
        train(batch)
        prof.step()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.capture.torch_session import Session
from gpusight.capture.torch_settings import OUTPUT_DIR, Settings
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from gpusight.capture.torch_settings import Options


class TorchProfile:
    """A context manager round a loop; call `step` at the end of each of its steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self.paths: tuple[Path, ...] = ()
        """The files that were written; complete after the block."""

    def __enter__(self) -> Self:
        """Begin; the first step starts here."""
        if self._session is not None:
            raise UsageError("this profile has begun already", hint="make another one")
        self._session = Session(self._settings)
        # A block whose steps nobody tells must not look like one long step.
        self._session.begin_step(marked=not self._settings.schedule.records_all)
        return self

    def step(self) -> None:
        """Say that a step ended and the next one begins."""
        if self._session is None:
            raise UsageError("step() belongs into the block", hint="with gs.torch_profile() as p:")
        self._session.end_step()
        self._session.begin_step()
        self.paths = tuple(self._session.paths)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what was recorded, also when the block raised."""
        session, self._session = self._session, None
        if session is not None:
            session.close(failed=kind is not None)
            self.paths = tuple(session.paths)


def torch_profile(
    output_dir: str | os.PathLike[str] = OUTPUT_DIR,
    *,
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
    cycles: int = 1,
    **options: Unpack[Options],
) -> TorchProfile:
    """Record steps of a loop with torch.profiler; without a schedule all of the block.

    Each of `cycles` waits for `wait` steps, runs the profiler for `warmup` without keeping
    anything, and records `active`. Then `output_dir/iteration_<steps done>/` has, for each rank:
    `rank0_trace.json.gz`, which every gpusight command reads; `rank0_key_averages.txt`
    (`key_averages=True`, `rows=25`); and what else is asked for: `memory_snapshot`, `stacks`,
    `memory_timeline`. A folder with an earlier run is left as it is: the next free
    `output_dir-2` is used.

    `cpu`, `cuda`, `record_shapes` (on), `profile_memory`, `with_stack` and `with_flops` (off) are
    torch.profiler's. `ranks=0` or `[0, 4]`: only these record. `diagnose=True` prints what holds
    the program back. `mode="nvtx"` records nothing itself: it marks steps as NVTX ranges `step N`
    and calls cudaProfilerStart and Stop round the active ones, for nsys and ncu; `"auto"`, the
    default, does so inside such a tool and else uses torch.profiler.
    """
    return TorchProfile(
        Settings(output_dir, wait=wait, warmup=warmup, active=active, cycles=cycles, **options)
    )
