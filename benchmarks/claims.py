"""How often `compare` claims a change where there is none, and misses one that is there.

    python -m benchmarks.claims

Captures are drawn at random: steps vary within a run, and runs differ from each other. The first
tables are of nulls, both sides drawn alike; 5% of them may be claimed. Beside ours stands what is
often done instead: Welch's test over all steps, as if runs did not differ. Takes a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.comparison.significance import SampledChange, compare_series, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DRAWS = 2000
DESIGNS = ((1, 1), (1, 2), (1, 3), (2, 2), (3, 3), (3, 5), (5, 5), (10, 10))
STEPS = (3, 10, 50)
RUNS = (0.0, 0.01, 0.05, 0.15)
"""Standard deviation between runs, as a part of the step."""
_SLOW = 0.05
_SETTLED = 50


def steps(rng: np.random.Generator, kind: str, draws: int, count: int) -> Floats:
    """Draw the steps of a run: `even`, `slow steps` now and then, or `alike` their neighbours."""
    noise = rng.normal(size=(draws, count + _SETTLED))
    if kind == "alike":
        for i in range(1, noise.shape[1]):
            noise[:, i] = 0.5 * noise[:, i - 1] + noise[:, i]
    drawn: Floats = np.exp(0.05 * noise[:, _SETTLED:])
    if kind == "slow steps":
        slow = rng.random(drawn.shape) < _SLOW
        drawn *= np.where(slow, 1 + rng.exponential(size=drawn.shape), 1.0)
    return drawn


def runs(rng: np.random.Generator, kind: str, draws: int, spread: float) -> Floats:
    """Draw by what runs differ; of `two states`, each run is in one or the other."""
    if kind == "two states":
        return np.exp(spread * rng.choice([-1.0, 1.0], size=(draws, 1)))
    return np.exp(spread * rng.normal(size=(draws, 1)))


def side(
    rng: np.random.Generator,
    captures: int,
    count: int,
    spread: float,
    kind: str = "even",
    *,
    draws: int = DRAWS,
    times: float = 1.0,
) -> list[SampledChange]:
    """Draw the captures of a side; every row is an experiment of its own."""
    return [
        SampledChange(
            (1,) * count,
            times * steps(rng, kind, draws, count) * runs(rng, kind, draws, spread),
        )
        for _ in range(captures)
    ]


def claimed(
    before: Sequence[SampledChange], after: Sequence[SampledChange], *, least: float = 0.0
) -> float:
    """Give the part of the experiments in which a change is claimed."""
    return float(np.mean([c.significant for c in compare_series(before, after, least=least)]))


def claimed_over_steps(before: Sequence[SampledChange], after: Sequence[SampledChange]) -> float:
    """Do the same with all steps thrown together."""
    old, new = (np.concatenate([one.values for one in s], axis=1) for s in (before, after))
    one, other = (x.var(axis=1, ddof=1) / x.shape[1] for x in (old, new))
    below = one**2 / (old.shape[1] - 1) + other**2 / (new.shape[1] - 1)
    half = t_quantile(0.95, (one + other) ** 2 / below) * np.sqrt(one + other)
    return float(np.mean(np.abs(new.mean(axis=1) - old.mean(axis=1)) > half))


def nulls(kind: str) -> None:
    """Print how often a change is claimed where nothing changed."""
    print(f"\nFalse claims, %; {kind}; in brackets: all steps thrown together\n")
    print("| captures | steps | " + " | ".join(f"runs differ by {r:.0%}" for r in RUNS) + " |")
    print("|---|---:|" + "---:|" * len(RUNS), flush=True)
    for old, new in DESIGNS:
        for count in STEPS:
            cells = []
            for spread in RUNS:
                rng = np.random.default_rng(7)
                pair = [side(rng, n, count, spread, kind) for n in (old, new)]
                cells.append(f"{100 * claimed(*pair):.1f} ({100 * claimed_over_steps(*pair):.0f})")
            print(f"| {old} v {new} | {count} | " + " | ".join(cells) + " |", flush=True)


def power() -> None:
    """Print how often a real change is claimed, with the least change that counts at 2%."""
    effects = (0.03, 0.05, 0.1, 0.2)
    print("\nChanges that are claimed, %; 10 steps each that vary by 5%, runs by 1%\n")
    print("| captures | " + " | ".join(f"{e:.0%} less" for e in effects) + " |")
    print("|---|" + "---:|" * len(effects), flush=True)
    for old, new in DESIGNS:
        cells = []
        for effect in effects:
            rng = np.random.default_rng(8)
            pair = side(rng, old, 10, 0.01), side(rng, new, 10, 0.01, times=1 - effect)
            cells.append(f"{100 * claimed(*pair, least=0.02):.0f}")
        print(f"| {old} v {new} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print all tables."""
    for kind in ("even", "slow steps", "alike", "two states"):
        nulls(kind)
    power()


if __name__ == "__main__":
    main()
