"""Which release of NVIDIA's tools first, and last, measures which GPU.

From the release notes of Nsight Compute (lists of supported GPUs: 2020.1 drops Pascal and adds
GA100, 2022.3 adds Ada and Hopper, 2025.3 drops Volta) and of the CUDA toolkit, whose releases bring
the others: 12.8 with Nsight Compute 2025.1 for Blackwell, 12.9 with 2025.2, 13.0 with 2025.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs of one compute capability."""

    name: str
    cuda: Pair
    """The first CUDA release that knows it, and with it the first CUPTI."""
    first_ncu: Pair | None
    """Year and number; None: ncu never measured it under that name."""
    last_ncu: Pair | None = None


_BY_CAPABILITY: dict[Pair, Generation] = {
    (5, 0): Generation("Maxwell", (6, 5), None),
    (5, 2): Generation("Maxwell", (6, 5), None),
    (6, 0): Generation("Pascal", (8, 0), (2018, 1), (2019, 5)),
    (6, 1): Generation("Pascal", (8, 0), (2018, 1), (2019, 5)),
    (7, 0): Generation("Volta", (9, 0), (2018, 1), (2025, 2)),
    (7, 5): Generation("Turing", (10, 0), (2019, 1)),
    (8, 0): Generation("Ampere", (11, 0), (2020, 1)),
    (8, 6): Generation("Ampere", (11, 1), (2020, 2)),
    (8, 7): Generation("Orin", (11, 4), (2021, 2)),
    (8, 9): Generation("Ada", (11, 8), (2022, 3)),
    (9, 0): Generation("Hopper", (11, 8), (2022, 3)),
    (10, 0): Generation("Blackwell", (12, 8), (2025, 1)),
    (10, 3): Generation("Blackwell Ultra", (12, 9), (2025, 2)),
    (11, 0): Generation("Thor", (13, 0), (2025, 3)),
    (12, 0): Generation("Blackwell", (12, 8), (2025, 1)),
    (12, 1): Generation("Blackwell", (12, 9), (2025, 2)),
}


def generation(capability: Pair | None) -> Generation | None:
    """Give what is known about GPUs of a compute capability; None for unknown ones."""
    return None if capability is None else _BY_CAPABILITY.get(capability)
