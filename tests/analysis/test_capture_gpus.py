"""GPUs by the names that people give, and by the numbers that captures give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpusight.analysis.capture_gpus import named_gpu, names_of_used
from gpusight.analysis.occupancy.block_occupancy import named_limits
from gpusight.analysis.orion.orion_launches import OrionSmLimits
from gpusight.errors import UsageError
from tests.traces import build_trace


def test_gpus_in_use_are_named_once_in_order() -> None:
    names = ["NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", ""]
    rows = [{"device": n, "name": name} for n, name in enumerate(names)]
    trace = build_trace(devices=rows)
    assert names_of_used(trace, [2, None, 0, 1]) == "NVIDIA H100 PCIe, NVIDIA A100-SXM4-40GB"
    assert names_of_used(trace, [1, 7]) == "NVIDIA A100-SXM4-40GB"
    assert names_of_used(trace, [None, 3]) is None


@pytest.mark.parametrize(
    "ask",
    [named_gpu, named_limits, lambda gpu: OrionSmLimits(gpu=gpu).named()],
    ids=["roofline", "occupancy", "orion"],
)
@pytest.mark.parametrize(
    ("name", "near"), [("A10O", "A100"), ("", "H100"), ("RTX 409", "RTX 4090")]
)
def test_a_gpu_that_is_not_known_is_refused_in_one_way(
    ask: Callable[[str], object], name: str, near: str
) -> None:
    with pytest.raises(UsageError, match=f"no GPU named '{name}'.*did you mean.*{near}"):
        ask(name)


def test_architectures_are_offered_where_they_will_do() -> None:
    with pytest.raises(UsageError, match="sm_80"):
        named_limits("sm_8x")
    with pytest.raises(UsageError) as refused:
        named_gpu("sm_8x")
    assert "sm_80" not in str(refused.value)
