"""Runs one of the programs: `python -m benchmarks.guilty_lines NAME [STEPS]`."""

from __future__ import annotations

import sys

import torch

from benchmarks.guilty_lines.host_work import PROGRAMS


def main() -> None:
    """Run it."""
    torch.set_num_threads(1)
    name, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    step = next(program for program in PROGRAMS if program.__name__ == name)()
    for number in range(steps):
        step(number)


if __name__ == "__main__":
    main()
