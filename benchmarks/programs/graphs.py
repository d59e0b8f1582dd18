"""CUDA graphs of functions without arguments, as the repaired programs use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def graphed(function: Callable[[], object], device: str) -> Callable[[], object]:
    """Capture a function into a CUDA graph and return its replay; on a CPU the function itself.

    It must read and write tensors that stay where they are.
    """
    if device == "cpu":
        return function
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay
