"""Tests see no setting of the user or the shell, and never touch each other's cache."""

from __future__ import annotations

import contextlib
import gc
import itertools
import locale
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.comparison import build_digest
from gpusight.trace.trace import Trace
from tests.shared import WIDER

_NUMBERS = itertools.count()
_DIGESTS: dict[tuple[object, ...], object] = {}
_INHERITED = {
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    *("TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "PATHEXT", "COMSPEC"),
}
_PYTHON_IGNORES = {"SIGPIPE", "SIGXFSZ"}  # and gives them back in what it starts


# A busy machine is no failure, and no folder of the checkout need be writable.
settings.register_profile(
    "suite", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

with contextlib.suppress(locale.Error):  # now, since test files read text while they load
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on captures beyond the sample; see `wide` in pyproject.toml."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            captures = {v for v in item.callspec.params.values() if isinstance(v, Path)}
            if captures & WIDER:
                item.add_marker("wide")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the test files, which stay: that is a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fix what programs inherit: variables, locale, time zone, home, umask, signals."""
    kept = {k: v for k, v in os.environ.items() if k in _INHERITED or k.startswith("PYTEST_")}
    own = {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",  # where no such locale exists
        "TERM": "xterm",
        "TZ": "UTC",
    }
    mask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch, _signals_heeded():
        for name in os.environ.keys() - kept:
            patch.delenv(name)
        for name, value in own.items():
            patch.setenv(name, value)
        if hasattr(time, "tzset"):
            time.tzset()
        yield
    os.umask(mask)


@contextlib.contextmanager
def _signals_heeded() -> Iterator[None]:
    """Let nothing that tests start ignore a signal because the shell does (`nohup`, `&`).

    A handler of ours keeps this process alive, and a program that it starts has the default.
    """
    ignored = [
        number
        for number in signal.Signals
        if number.name not in _PYTHON_IGNORES and signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        interrupts = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if interrupts else lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Made when something is written there, which few tests do.
    folder: Path = tmp_path_factory.getbasetemp() / f"gpusight-cache-{next(_NUMBERS)}"
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder))


@pytest.fixture(scope="module")
def _cache_of_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def one_cache(monkeypatch: pytest.MonkeyPatch, _cache_of_file: Path) -> None:
    """Let the tests of a file share a cache: large reports take seconds to read."""
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(_cache_of_file))


@pytest.fixture
def digests_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum a file up once in a session: comparing does that anew, in a third of a second each."""
    make = build_digest.make_digest

    def made(trace: Trace, selection: Selection = EVERYTHING, **time: Any) -> object:
        path = Path(trace.meta.path)
        if not path.is_file():
            return make(trace, selection, **time)
        state = path.stat()
        file = (path, state.st_ino, state.st_size, state.st_mtime_ns)
        key = (file, selection, *sorted(time.items()))
        if key not in _DIGESTS:
            _DIGESTS[key] = make(trace, selection, **time)
        return _DIGESTS[key]

    monkeypatch.setattr(build_digest, "make_digest", made)
