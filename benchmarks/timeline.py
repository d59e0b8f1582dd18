"""Time the timeline of large captures: making it, and answering what a screen shows.

    python -m benchmarks.timeline            # 1 M kernels, 1 M API calls, 1 M NVTX ranges
    python -m benchmarks.timeline --large    # also 10 M of each: 2 GB of disk and some minutes
    python -m benchmarks.timeline FILE       # any other capture

Each capture is opened by two processes of its own, one after the other: the first finds no cache,
the second what the first one kept. Answers are timed in the second, all tracks at 2,000 bins; times
are medians. `own memory` is what the process cannot give back: without files that it maps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.generate import generate
from benchmarks.measure import Failed, run_once
from benchmarks.run import CAPTURES, LARGE, OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.viewer.timeline_view import ViewerTimeline

Answer = TypeVar("Answer")
BINS = 2_000
ASKED = 40
"""How often each question is asked."""
ZOOMS = {"all of it": 1.0, "a hundredth": 0.01, "a millionth": 1e-6}


def timed(what: Callable[[], Answer]) -> tuple[float, Answer]:
    """Do something and say how long it took."""
    began = time.perf_counter()
    answer = what()
    return time.perf_counter() - began, answer


def own_bytes() -> int:
    """Give the memory of this process that is not a file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def ask(capture: Path, *, ledger: bool) -> dict[str, float]:
    """Make a timeline and ask it; gives seconds, and bytes under names that end in `bytes`."""
    import gpusight
    from gpusight.viewer.timeline_view import ViewerTimeline as Timeline

    opened, trace = timed(lambda: gpusight.open(capture))
    made, timeline = timed(lambda: Timeline(trace))
    figures = {"make the timeline": opened + made, "own memory then, bytes": own_bytes()}
    keys = [track.key for track in timeline.tracks]
    first, _ = timed(lambda: timeline.window(keys, timeline.start_ns, timeline.end_ns, BINS))
    figures |= {"first window": first, **windows(timeline, keys), **places(timeline)}
    figures |= {
        "lines kept, bytes": timeline.kept_bytes,
        "own memory at the end, bytes": own_bytes(),
    }
    if ledger:
        figures["compute the ledger"], _ = timed(timeline.prepare_ledger)
    trace.close()
    return figures


def windows(timeline: ViewerTimeline, keys: list[str]) -> dict[str, float]:
    """Time windows of several widths, anywhere in the capture."""
    chance, figures = random.Random(1), {}
    whole = timeline.end_ns - timeline.start_ns
    for name, part in ZOOMS.items():
        width = max(1, int(whole * part))
        taken = []
        for _ in range(ASKED):
            start = timeline.start_ns + int(chance.random() * (whole - width))
            taken.append(timed(lambda s=start, w=width: timeline.window(keys, s, s + w, BINS))[0])  # type: ignore[misc]
        figures[f"window of {name}"] = statistics.median(taken)
    return figures


def places(timeline: ViewerTimeline) -> dict[str, float]:
    """Time finding events: by row, and by where they were clicked."""
    chance = random.Random(2)
    rows = [chance.randrange(timeline.trace.row_count("kernels")) for _ in range(ASKED)]
    timed_spots = [timed(lambda r=row: timeline.spot("kernels", r)) for row in rows]  # type: ignore[misc]
    spots = [spot for _, spot in timed_spots if spot is not None]
    picked = [
        timed(lambda s=spot: timeline.pick(s.track, s.line, s.start_ns, 0))[0]  # type: ignore[misc]
        for spot in spots
    ]
    return {
        "find a kernel by its row": statistics.median(taken for taken, _ in timed_spots),
        "find what was clicked": statistics.median(picked),
    }


def measure(capture: Path, *, ledger: bool) -> None:
    """Run both processes and print what they tell."""
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        environment = {**os.environ, "GPUSIGHT_CACHE_DIR": f"{folder}/cache"}
        for run in ("cold", "warm"):
            answers = Path(folder) / f"{run}.json"
            command = [sys.executable, "-m", "benchmarks.timeline", str(capture)]
            command += ["--answers", str(answers), *(["--ledger"] if ledger else [])]
            once = run_once(command, environment=environment)
            if isinstance(once, Failed):
                sys.exit(f"{capture.name}: {once.reason}")
            figures = json.loads(answers.read_text())
            if run == "cold":
                figures = {k: figures[k] for k in ("make the timeline", "first window")}
            figures["peak of the process, bytes"] = once.peak_bytes
            for what, value in figures.items():
                name = what.removesuffix(", bytes")
                print(f"| {capture.stem}, {run}: {name} | {shown(what, value)} |")
            sys.stdout.flush()


def shown(what: str, value: float) -> str:
    """Write a time or a size down."""
    if what.endswith("bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def main() -> None:
    """Make the captures, measure them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("capture", nargs="?", type=Path, help="instead of generated ones")
    parser.add_argument("--large", action="store_true", help="also 10 M kernels")
    parser.add_argument("--ledger", action="store_true", help="time the ledger's track too")
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answers:
        figures = ask(arguments.capture, ledger=arguments.ledger)
        arguments.answers.write_text(json.dumps(figures))
        return
    OUT.mkdir(parents=True, exist_ok=True)
    print("| what | time or memory |\n|---|---:|", flush=True)
    for capture in [arguments.capture] if arguments.capture else generated(arguments.large):
        measure(capture, ledger=arguments.ledger)


def generated(large: bool) -> list[Path]:
    """Make the captures that are not there yet."""
    paths = []
    for key, (kernels, _) in CAPTURES.items():
        if large or key not in LARGE:
            paths.append(OUT / f"{key}.sqlite")
            if not paths[-1].exists():
                generate(kernels, paths[-1])
    return paths


if __name__ == "__main__":
    main()
