"""The history that PyTorch's CUDA allocator keeps of its memory, switched on for a while."""

from __future__ import annotations

from typing import Any

_ENTRIES = 1_000_000


class MemoryHistory:
    """Switches the history on and off again; one that the program keeps itself is left on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        is_kept = getattr(torch._C, "_cuda_isHistoryEnabled", bool)
        self._is_ours = not is_kept()
        if self._is_ours:
            record = torch.cuda.memory._record_memory_history
            record("all", stacks="python", max_entries=_ENTRIES)

    def snapshot(self) -> dict[str, Any]:
        """Give the history, and the memory as it is now."""
        taken: dict[str, Any] = self._torch.cuda.memory._snapshot()
        return taken

    def end(self) -> None:
        """Keep no more of it."""
        if self._is_ours:
            self._is_ours = False
            self._torch.cuda.memory._record_memory_history(None)
