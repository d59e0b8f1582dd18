"""One process that uses a cache and may come to harm: `python cache_worker.py CAPTURE HARM VALUE`.

Prints what it read and noted as JSON, one line for each time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import zlib
from pathlib import Path

import polars as pl

from gpusight.readers import column_cache
from gpusight.readers.cache_folder import clear_cache
from gpusight.readers.open import open_trace

STEPS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.listdir"),
    *("mmap.__new__", "fcntl.flock"),
}
"""What Python says aloud before it does it; between them lies every state that a kill can leave."""


def answer(capture: Path, *, cached: bool = True) -> tuple[int, tuple[str, ...]]:
    """Read tables and derive a frame; gives a checksum of all values, and the notes."""
    with open_trace(capture, cache=cached) as trace:
        kernels = trace.table("kernels", ["start_ns", "name"])
        calls = trace.table("api_calls", ["start_ns"])
        total = trace.derive("total-1", lambda: _slow_total(kernels))
    values = repr((kernels.rows(), calls.rows(), total.rows()))
    return zlib.crc32(values.encode()), trace.warnings


def _slow_total(kernels: pl.DataFrame) -> pl.DataFrame:
    threading.Event().wait(0.03)  # what takes no time is not kept
    return kernels.select(pl.col("start_ns").sum())


def is_writer() -> bool:
    return threading.current_thread().name.startswith("gpusight-cache")


def die_at(count: int) -> None:
    """End as `kill -9` does, before this step of the thread that writes the cache."""
    steps = 0

    def hear(event: str, _: object) -> None:
        nonlocal steps
        if event in STEPS and is_writer():
            steps += 1
            if steps == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def limit_files(most_bytes: int, *, deadly: bool) -> None:
    """Let larger files fail, or end the process in the middle of writing one."""
    import resource

    sys.dont_write_bytecode = True  # Python keeps what it could write of a compiled module
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def mingle(capture: Path, seed: int) -> None:
    """Read, fill, trim and clear in a random order."""
    choose = random.Random(seed)
    for _ in range(8):
        os.environ["GPUSIGHT_CACHE_BYTES"] = choose.choice(["0", "100000000"])
        what = choose.choice(["clear", "other", "read", "read"])
        if what == "clear":
            clear_cache()
        elif what == "other":
            answer(capture.with_name("other.sqlite"))
        sys.stdout.write(json.dumps(answer(capture)) + "\n")


def main(capture: Path, harm: str, value: int) -> None:
    column_cache._MIN_CACHED_ROWS = 1
    if harm == "crowd":
        mingle(capture, value)
        return
    if harm == "kill":
        die_at(value)
    elif harm in ("cut", "full"):
        limit_files(value, deadly=harm == "cut")
    elif harm == "user" and os.geteuid() == 0:
        answer(capture, cached=False)  # imports what another user may have no access to
        os.setgid(value)
        os.setuid(value)
    sys.stdout.write(json.dumps(answer(capture)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
