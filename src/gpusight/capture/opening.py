"""Opens a range for whoever listens, and closes it again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.capture import nvtx
from gpusight.capture.inside.events import HUB
from gpusight.capture.inside.torch_profiler import range_recorder

if TYPE_CHECKING:
    from collections.abc import Callable


class Opened(NamedTuple):
    """A range that somebody heard, and what closes it."""

    domain: str | None
    told: str | None
    """What listeners were told."""
    speaker: nvtx.Backend | None
    handle: Any
    """Of a start/end range; None for push/pop."""
    recorded: Any
    """PyTorch's `record_function`."""


class _Torch:
    """PyTorch's profiler and compiler, where the program has imported them; we never do."""

    def __init__(self) -> None:
        self.records: Callable[[], bool] = self._records
        self.compiles: Callable[[], bool] = self._compiles

    def find(self) -> bool:
        """Look for them; once found, they are asked without looking."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        autograd = getattr(torch, "autograd", None)  # not there while torch is being imported
        if not (hasattr(autograd, "profiler") and hasattr(autograd, "_profiler_enabled")):
            return False
        compiler = getattr(torch, "compiler", None)
        compiles = self.compiles = getattr(compiler, "is_compiling", lambda: False)
        records = range_recorder(torch)
        self.records = lambda: not compiles() and records()
        return True

    def _records(self) -> bool:
        """Tell whether the profiler runs."""
        return self.find() and self.records()

    def _compiles(self) -> bool:
        """Tell whether the compiler is tracing what we are called from."""
        return self.find() and self.compiles()


_TORCH = _Torch()
_TORCH.find()


def listened() -> bool:
    """Tell whether anybody would hear a range that this thread opens now.

    Nobody does in a function that `torch.compile` traces: its parts do not run one by one, and
    opening a range would break its graph.
    """
    heard = not nvtx.CHOICE.quiet or HUB.heard or _TORCH.records()
    return heard and not _TORCH.compiles()


def compiling() -> bool:
    """Tell whether `torch.compile` is tracing what calls this."""
    return _TORCH.compiles()


def open_range(
    name: str | None,
    domain: str | None = None,
    category: str | int | None = None,
    color: int | None = None,
    payload: float | None = None,
) -> Opened:
    """Open a range on this thread's stack.

    Listeners come first: what they switch on shall see the range.
    """
    name = name or "range"
    told = _tell(name, domain)
    speaker = nvtx.backend()
    if speaker is not None:
        speaker.push(nvtx.Event(name, domain, category, color, payload))
    return Opened(domain, told, speaker, None, record(name))


def start_range(
    name: str | None,
    domain: str | None = None,
    category: str | int | None = None,
    color: int | None = None,
    payload: float | None = None,
) -> Opened | None:
    """Open a range that any thread may close, in any order; None where nobody listens."""
    name = name or "range"
    told = _tell(name, domain)
    speaker = nvtx.backend()
    if told is None and speaker is None:
        return None
    event = nvtx.Event(name, domain, category, color, payload)
    handle = speaker.start(event) if speaker else None
    return Opened(domain, told, speaker, handle, None)


def close_range(opened: Opened | None) -> None:
    """Close a range, whoever heard it open and whoever listens by now."""
    if opened is None:
        return
    if opened.recorded is not None:
        opened.recorded.__exit__(None, None, None)
    if opened.speaker is not None:
        if opened.handle is None:
            opened.speaker.pop(opened.domain)
        else:
            opened.speaker.end(opened.handle)
    if opened.told is not None:
        HUB.end_range(opened.told)


def _tell(name: str, domain: str | None) -> str | None:
    """Tell listeners of a range, as `name@domain` where it has one."""
    if not HUB.heard:
        return None
    told = name if domain is None else f"{name}@{domain}"
    HUB.begin_range(told)
    return told


def record(name: str) -> Any:
    """Open a range in PyTorch's profiler, if it runs."""
    if not _TORCH.records():
        return None
    recorded = sys.modules["torch"].autograd.profiler.record_function(name)
    recorded.__enter__()
    return recorded
