"""Whether a profiler of PyTorch's runs in this process; the program has imported torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable


def profiler_runs(torch: Any) -> bool:
    """Tell whether one runs: two at once are not possible.

    A profiler of one thread says so on that thread, one of all threads in a module's variable,
    which PyTorch has since 2.1.
    """
    everywhere = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch.autograd._profiler_enabled())


def range_recorder(torch: Any) -> Callable[[], bool]:
    """Give what tells, fast, whether a profiler would record a range of this thread.

    `emit_nvtx` counts as a profiler, too, but would only repeat what we tell NVTX ourselves.
    """
    profiler, here = torch.autograd.profiler, torch.autograd._profiler_enabled
    kind = getattr(torch._C._autograd, "_profiler_type", None)
    if kind is None or not hasattr(profiler, "_is_profiler_enabled"):
        return cast("Callable[[], bool]", here)
    return lambda: (profiler._is_profiler_enabled or here()) and kind().name != "NVTX"
