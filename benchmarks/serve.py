"""Time `gpusight serve` as a person sees it: in Chromium, from the command to the picture.

    python -m benchmarks.serve            # 1 M kernels, 1 M API calls, 1 M NVTX ranges
    python -m benchmarks.serve --large    # also 10 M of each: 2 GB of disk and some minutes
    python -m benchmarks.serve FILE       # any other capture

Each capture is served without a cache and with what that kept. `picture` is from opening the page
to the first whole timeline; `from the command` counts from starting `gpusight serve`, in a browser
that runs already; `first window` is the same without a browser, which keeps a processor busy. Zooms
and pans hold a key for two seconds: frames are the intervals between them, script is what each
took, answers are the windows asked for meanwhile. Memory is the server's: when all is worked out,
and its peak until then. No peer is run beside it: those with a timeline need a screen or a network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, Request, sync_playwright

from benchmarks.generate import generate
from benchmarks.run import CAPTURES, LARGE, OUT
from tests.browser.browsing import CHROMIUM, DESKTOP, FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = {"zoom out": "s", "zoom in": "w", "pan": "d"}
HELD_S = 2.0
READY = "[data-testid=pane][data-state=ready]"
WATCH = """(() => {
  const raf = window.requestAnimationFrame.bind(window);
  window.frames_ms = []; window.script_ms = []; let last = 0;
  window.requestAnimationFrame = (callback) => raf((at) => {
    const began = performance.now(); callback(at);
    window.script_ms.push(performance.now() - began);
    if (last) window.frames_ms.push(at - last);
    last = at;
  });
})()"""


@dataclass(frozen=True)
class Moved:
    """What holding a key gave."""

    frame_ms: float
    slow_frame_ms: float
    script_ms: float
    answer_ms: float
    slowest_answer_ms: float


@dataclass(frozen=True)
class Served:
    """What one run of the server gave."""

    picture_s: float
    from_command_s: float
    moved: dict[str, Moved]
    rss_bytes: int
    peak_bytes: int


@contextmanager
def serving(capture: Path, cache: Path) -> Iterator[tuple[str, int, float]]:
    """Run the command; gives its address, its process and when it began."""
    command = [sys.executable, "-m", "gpusight", "serve", str(capture), "--quiet"]
    began = time.perf_counter()
    environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        if address is None:
            sys.exit(f"gpusight serve {capture} gave no address")
        yield address[0], process.pid, began
        process.terminate()


def serve(browser: Browser, capture: Path, cache: Path) -> Served:
    """Serve a capture and look at it."""
    page = browser.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    page.add_init_script(WATCH)
    with serving(capture, cache) as (url, pid, began):
        page.goto(url)
        page.wait_for_selector(READY, timeout=600_000)
        from_command_s = time.perf_counter() - began
        page.wait_for_selector("#body-findings:not(:has(.busy))", timeout=600_000)
        # The server is warm now: what opening the page takes is what anybody sees from then on.
        opened = time.perf_counter()
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_selector(READY)
        picture_s = time.perf_counter() - opened
        moved = {what: move(page, key) for what, key in KEYS.items()}
        page.close()
        return Served(picture_s, from_command_s, moved, memory(pid, "VmRSS"), memory(pid, "VmHWM"))


def move(page: Page, key: str) -> Moved:
    """Hold a key and watch."""
    answers: list[float] = []

    def finished(request: Request) -> None:
        if "/window?" in request.url:
            timing = request.timing
            answers.append(timing["responseEnd"] - timing["requestStart"])

    page.wait_for_timeout(1_000)
    page.mouse.move(DESKTOP[0] / 2, DESKTOP[1] / 2)
    page.on("requestfinished", finished)
    page.evaluate("window.frames_ms.length = window.script_ms.length = 0")
    page.keyboard.down(key)
    page.wait_for_timeout(HELD_S * 1_000)
    page.keyboard.up(key)
    page.wait_for_timeout(300)
    page.remove_listener("requestfinished", finished)
    frames, script = page.evaluate("[window.frames_ms, window.script_ms]")
    return Moved(
        statistics.median(frames),
        tenth_slowest(frames),
        statistics.median(script),
        statistics.median(answers or [0.0]),
        max(answers, default=0.0),
    )


def tenth_slowest(values: list[float]) -> float:
    return sorted(values)[len(values) * 9 // 10]


def memory(pid: int, what: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def first_window(capture: Path, cache: Path) -> float:
    """Give the seconds from the command to an answer that holds all tracks over all of the time."""
    with serving(capture, cache) as (url, _, began):
        while "reading" in asked(f"{url}api/captures"):
            time.sleep(0.02)
        info = json.loads(asked(f"{url}api/captures/0"))
        query = {"start": info["start_ns"], "end": info["end_ns"], "bins": DESKTOP[0]}
        query["tracks"] = ",".join(track["key"] for track in info["tracks"])
        with urllib.request.urlopen(f"{url}api/captures/0/window?{urlencode(query)}") as answer:
            answer.read()
        return time.perf_counter() - began


def asked(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read()).decode()


def report(label: str, cache: str, found: Served) -> None:
    print(
        f"| {label}, {cache} | picture {found.picture_s:.2f} s, from the command "
        f"{found.from_command_s:.2f} s | memory {found.rss_bytes / 1e6:,.0f} MB, "
        f"peak {found.peak_bytes / 1e6:,.0f} MB |"
    )
    for what, one in found.moved.items():
        print(
            f"|   {what} | frame {one.frame_ms:.1f} ms, slowest tenth {one.slow_frame_ms:.1f} ms, "
            f"script {one.script_ms:.1f} ms | answer {one.answer_ms:.0f} ms, "
            f"slowest {one.slowest_answer_ms:.0f} ms |"
        )


def captures(given: list[Path], *, large: bool) -> Iterator[tuple[str, Path]]:
    if given:
        yield from ((path.name, path) for path in given)
        return
    OUT.mkdir(exist_ok=True)
    for key, (kernels, label) in CAPTURES.items():
        if key in LARGE and not large:
            continue
        path = OUT / f"{key}.sqlite"
        if not path.exists():
            generate(kernels, path)
        yield label, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for label, path in captures(args.files, large=args.large):
            cache = Path(folder) / "cache"
            for state in ("no cache", "cached"):
                report(label, state, serve(browser, path, cache))
            seconds = statistics.median(first_window(path, cache) for _ in range(3))
            print(f"| {label}, cached | first window {seconds:.2f} s from the command | |")
            shutil.rmtree(cache)


if __name__ == "__main__":
    main()
