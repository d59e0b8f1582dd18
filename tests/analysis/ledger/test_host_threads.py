"""Input that nothing names: long stretches before copies of batches to the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.ledger.windows import accounts, entries, kernel, launch, us

H2D, D2H = "Host-to-Device", "Device-to-Host"
STEP, BATCH = 5_000, 100_000


def idle_ms(
    steps: int = 4, size: int = BATCH, returned: int = 0, **tables: Any
) -> dict[str, float]:
    """Give the idle entries, in ms, of steps of 4 ms without a call, a copy and a kernel.

    With `returned`, each step also copies that many bytes back at its end.
    """
    calls, copies, kernels = [], [], []
    for step in range(steps):
        at, first = step * STEP, 3 * step + 1
        calls += [us(at + 4_000, at + 4_020, name="cudaMemcpyAsync", correlation=first)]
        copies += [us(at + 4_010, at + 4_030, kind=H2D, bytes=size, correlation=first)]
        calls += [launch(at + 4_040, at + 4_050, first + 1)]
        kernels += [kernel(at + 4_060, at + 4_900, first + 1)]
        if returned:
            calls += [us(at + 4_100, at + 4_990, name="cudaMemcpyAsync", correlation=first + 2)]
            row = {"kind": D2H, "bytes": returned, "correlation": first + 2}
            copies += [us(at + 4_910, at + 4_980, **row)]
    end = steps * STEP
    ledger = entries(0, end, api_calls=calls, kernels=kernels, copies=copies, **tables)
    return {name: us_ / 1_000 for name, us_ in ledger.items() if name.startswith("idle/")}


@pytest.mark.parametrize(
    ("options", "input_steps"),
    [
        pytest.param({}, 4, id="the stretch before each batch"),
        pytest.param({"steps": 2}, 0, id="too few to be a loop"),
        pytest.param({"size": 64}, 0, id="a scalar, not a batch"),
        pytest.param({"returned": 4}, 4, id="a loss is read back: the batch is new"),
        pytest.param({"returned": BATCH}, 0, id="goes back where it came from: a collective"),
        pytest.param({"ranges": [us(0, 20_000, name="train")]}, 4, id="a range around all steps"),
        pytest.param({"ranges": [us(5_000, 8_900, name="log")]}, 3, id="one has another name"),
    ],
)
def test_long_stretches_before_batches(options: dict[str, Any], input_steps: int) -> None:
    assert idle_ms(**options).get("idle/input", 0.0) == pytest.approx(4.05 * input_steps, abs=0.3)


def test_labels_may_be_copied_before_the_data() -> None:
    """Copies up to the next launch are one batch."""
    calls, copies, kernels = [], [], []
    for step in range(4):
        at, first = step * STEP, 3 * step + 1
        for number, size in enumerate((128, BATCH)):
            start = at + 4_000 + 30 * number
            calls += [us(start, start + 5, name="cudaMemcpyAsync", correlation=first + number)]
            row = {"kind": H2D, "bytes": size, "correlation": first + number}
            copies += [us(start + 6, start + 9, **row)]
        calls += [launch(at + 4_070, at + 4_075, first + 2)]
        kernels += [kernel(at + 4_080, at + 4_900, first + 2)]
    ledger = entries(0, 4 * STEP, api_calls=calls, kernels=kernels, copies=copies)
    assert ledger["idle/input"] == 4_000 + 3 * 4_100


def test_ranks_bring_back_what_they_copied_themselves() -> None:
    """One process copies its gradients to the host, another one only loads batches."""
    calls, copies = [], []
    for step in range(4):
        at = step * STEP
        for process in (1, 2):
            own = {"process": process, "thread": process, "correlation": 10 * step + process}
            start = at + 4_000 + 100 * process
            calls += [us(start, start + 5, name="cudaMemcpyAsync", **own)]
            row = {"kind": H2D, "bytes": BATCH, "device": process, **own}
            row.pop("thread")
            copies += [us(start + 6, start + 9, **row)]
        back = {"process": 1, "correlation": 10 * step + 5}
        calls += [us(at + 4_300, at + 4_310, name="cudaMemcpyAsync", thread=1, **back)]
        copies += [us(at + 4_311, at + 4_320, kind=D2H, bytes=BATCH, device=1, **back)]
    first, second = accounts(0, 4 * STEP, api_calls=calls, copies=copies)
    inputs = [device.ledger.ns("idle/input") for device in (first, second)]
    assert inputs[0] == 0
    assert inputs[1] > 10_000_000
