"""Tests see no setting of the user or the shell, and never touch each other's cache."""

from __future__ import annotations

import contextlib
import gc
import itertools
import locale
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gpusight.analysis import profiler_correction
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.comparison import build_digest
from gpusight.readers import open as open_module
from gpusight.readers.open import open_trace
from gpusight.rules import kernel_diagnosis, timeline_diagnosis
from gpusight.rules.context import RuleContext
from gpusight.rules.engine import RuleResults, run_timeline_rules
from gpusight.rules.finding import TimelineFinding
from gpusight.rules.rule import TimelineRule
from gpusight.trace.trace import Trace
from tests.shared import REPOSITORY, TIMES, TWINS, WIDER, KeptTrace, file_state, kept_open

_NUMBERS = itertools.count()
_ANSWERS: dict[tuple[object, ...], object] = {}
_INHERITED = {
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    *("TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "PATHEXT", "COMSPEC"),
}
_PYTHON_IGNORES = {"SIGPIPE", "SIGXFSZ"}  # and gives them back in what it starts


# A busy machine is no failure, and no folder of the checkout need be writable.
# Examples of a test may share a folder: each writes its file anew.
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("suite", deadline=None, database=None, suppress_health_check=_UNCHECKED)
settings.load_profile("suite")

with contextlib.suppress(locale.Error):  # now, since test files read text while they load
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


gc.disable()  # until all tests are collected, which leaves next to nothing to free


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on captures beyond the sample; see `wide` in pyproject.toml."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            captures = {v for v in item.callspec.params.values() if isinstance(v, Path)}
            every_format = "/readers/" in item.nodeid or "/sharing/" in item.nodeid
            if captures & (WIDER if every_format else WIDER | TWINS):
                item.add_marker("wide")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the test files, which stay: that is a tenth of the time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


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


@pytest.fixture(scope="module", autouse=True)
def _read_and_answered_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read, diagnose and sum up a capture once in a session, where tests show the answers.

    Reading takes a twentieth of a second and an answer a third, and thousands of tests show the
    same few captures. A test that imports `open_trace` itself reads.
    """
    topics = {*request.path.relative_to(REPOSITORY).parts}
    with pytest.MonkeyPatch.context() as patch:
        if not topics & {"readers", "faults"}:
            patch.setattr(open_module, "open_trace", _open_once)
        if not topics & {"rules", "faults"}:
            _answer_once(patch, build_digest, "make_digest")
            _answer_once(patch, timeline_diagnosis, "diagnose_timeline")
            _answer_once(patch, kernel_diagnosis, "diagnose_kernels")
            for module in (build_digest, timeline_diagnosis):
                patch.setattr(module, "run_timeline_rules", _run_rules_once)
        yield


@pytest.fixture
def recorded_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the recorded times, for tests that know a capture to the digit.

    All others see what users see: times without the estimated overhead of the profiler.
    """
    monkeypatch.setattr(profiler_correction, "_estimate", lambda _trace, _focus: None)
    monkeypatch.setitem(TIMES, "recorded", True)


def _open_once(path: str | os.PathLike[str], *, cache: bool = True) -> Trace:
    """Open a capture as the tests before left it, unless what they read came with warnings."""
    if Path(path).is_file():
        trace = kept_open(os.fspath(path), file_state(Path(path)))
        if trace.warnings == trace.meta.warnings:
            return trace
    return open_trace(path, cache=cache)


def _run_rules_once(
    context: RuleContext, rules: Iterable[TimelineRule]
) -> RuleResults[TimelineFinding]:
    """Run the same rules on the same sample once, for a digest and a diagnosis."""
    run = list(rules)
    trace, sample = context.trace, context.schedule
    if not isinstance(trace, KeptTrace):
        return run_timeline_rules(context, run)
    key = (context.focus, sample.start_ns, sample.end_ns, sample.threads, context.device, *run)
    if key not in trace.rule_results:
        trace.rule_results[key] = run_timeline_rules(context, run)
    return trace.rule_results[key]


def _answer_once(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """Keep what a function of a trace returns, by the file and the other arguments."""
    answer = getattr(module, name)

    def answered(trace: Trace, selection: Selection = EVERYTHING, **options: Any) -> object:
        path = Path(trace.meta.path)
        # A ledger computed before saves time and changes nothing.
        given = {k: v for k, v in options.items() if v and k != "known"}
        if not path.is_file() or "extra_rules" in given:
            return answer(trace, selection, **options)
        times = repr((trace.pace, correction_of(trace)))
        key = (name, path, file_state(path), times, selection, repr(sorted(given.items())))
        if key not in _ANSWERS:
            _ANSWERS[key] = answer(trace, selection, **options)
        return _ANSWERS[key]

    monkeypatch.setattr(module, name, answered)
