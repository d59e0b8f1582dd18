"""The CUDA runtime is found wherever it may lie, and never started by asking."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusight.errors import RecordError
from gpusight.recording.inside import cuda_driver


class Library:
    """Stands in for a shared library."""

    def __init__(self, status: int = 0, prefix: str = "cuda") -> None:
        self.calls: list[str] = []
        self._status = status
        for name in (f"{prefix}ProfilerStart", f"{prefix}ProfilerStop"):
            setattr(self, name, partial(self._call, name))

    def _call(self, name: str) -> int:
        self.calls.append(name)
        return self._status


@pytest.fixture
def loadable(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What can be loaded, by path; nothing else can."""
    known: dict[str, Any] = {}

    def load(path: str, mode: int = 0) -> Any:
        del mode
        if path not in known:
            raise OSError(f"no {path}")
        return known[path]

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(cuda_driver, "_PROFILER_LIBRARY", [])
    monkeypatch.setattr(cuda_driver, "_MISSED", {})
    monkeypatch.setattr(cuda_driver, "_LOADED", [])
    monkeypatch.setattr(cuda_driver, "mapped_libraries", lambda _: [])
    monkeypatch.setattr(cuda_driver, "_torch_profiler", lambda: None)
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return known


def _file(path: Path) -> str:
    path.parent.mkdir(parents=True)
    path.touch()
    return str(path)


@pytest.mark.parametrize("place", ["cuda_runtime/lib/libcudart.so.12", "cu13/lib/libcudart.so.13"])
def test_in_wheels(
    place: str, loadable: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = loadable[_file(tmp_path / "nvidia" / place)] = Library()
    monkeypatch.syspath_prepend(tmp_path)
    cuda_driver.profiler_start()
    cuda_driver.profiler_stop()
    assert library.calls == ["cudaProfilerStart", "cudaProfilerStop"]
    assert cuda_driver._profiler_library().where.endswith(place)


@pytest.mark.parametrize("place", ["lib64/libcudart.so.11.0", "bin/cudart64_12.dll"])
def test_in_a_toolkit(
    place: str, loadable: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = loadable[_file(tmp_path / place)] = Library()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    cuda_driver.profiler_start()
    assert library.calls == ["cudaProfilerStart"]


def test_the_driver_comes_last(loadable: dict[str, Any]) -> None:
    library = loadable[cuda_driver.LIBRARIES[0]] = Library(prefix="cu")
    cuda_driver.profiler_start()
    assert library.calls == ["cuProfilerStart"]
    loadable[cuda_driver._LOADER_NAMES[0]] = Library()
    cuda_driver._PROFILER_LIBRARY.clear()
    assert cuda_driver._profiler_library().where == cuda_driver._LOADER_NAMES[0]


@pytest.mark.usefixtures("loadable")
def test_nowhere() -> None:
    with pytest.raises(cuda_driver.CudaNotFoundError, match="no CUDA runtime") as caught:
        cuda_driver.profiler_start()
    assert "libcudart.so.13" in str(caught.value)
    assert "CUDA_HOME" in str(caught.value)


@pytest.mark.usefixtures("loadable")
def test_what_is_nowhere_is_looked_for_again_only_once_torch_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(ctypes.util, "find_library", searched.append)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for _ in range(3):
        with pytest.raises(cuda_driver.CudaNotFoundError):
            cuda_driver.profiler_start()
    assert len(searched) == 1  # it starts a compiler and takes long
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    with pytest.raises(cuda_driver.CudaNotFoundError):
        cuda_driver.profiler_start()
    assert len(searched) == 2


@pytest.mark.parametrize(
    ("status", "why"), [(100, "CUDA error 100"), (201, "nothing on this thread has used the GPU")]
)
def test_a_call_that_fails(status: int, why: str, loadable: dict[str, Any]) -> None:
    loadable[cuda_driver._LOADER_NAMES[0]] = Library(status)
    with pytest.raises(RecordError, match=r"cudaProfilerStart of .* failed") as caught:
        cuda_driver.profiler_start()
    assert why in str(caught.value)


@pytest.mark.usefixtures("loadable")
def test_a_process_without_the_driver_does_not_use_cuda() -> None:
    assert not cuda_driver.cuda_in_use()
    cuda_driver.borrow_context()
    cuda_driver.wait_for_gpus()


class Driver:
    """Stands in for libcuda, with devices that somebody works on."""

    def __init__(self, *, initialised: bool = True, active: tuple[int, ...] = ()) -> None:
        self._initialised, self._active = initialised, active
        self.contexts: list[int] = []
        self.waited: list[int] = []
        self.retained: list[int] = []

    def _answer(self, target: Any, value: int) -> int:
        if not self._initialised:
            return 3
        target._obj.value = value
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        return self._answer(context, self.contexts[-1] if self.contexts else 0)

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        return self._answer(count, 3)

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        return self._answer(device, number)

    def cuDevicePrimaryCtxGetState(self, device: int, _flags: Any, active: Any) -> int:  # noqa: N802
        return self._answer(active, int(device in self._active))

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:  # noqa: N802
        self.retained.append(device)
        return self._answer(context, 70 + device)

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.retained.remove(device)
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.contexts = [context.value]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, _context: Any) -> int:  # noqa: N802
        self.contexts.pop()
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        self.waited.append(self.contexts[-1])
        return 0


linux = pytest.mark.skipif(not hasattr(os, "RTLD_NOLOAD"), reason="cannot be told here")


@linux
@pytest.mark.parametrize(
    ("initialised", "active", "in_use"),
    [(False, (), False), (True, (), False), (True, (1,), True)],
)
def test_use_is_seen_from_any_thread(
    initialised: bool, active: tuple[int, ...], in_use: bool, loadable: dict[str, Any]
) -> None:
    library = loadable[cuda_driver.LIBRARIES[0]] = Driver(initialised=initialised, active=active)
    assert cuda_driver.cuda_in_use() is in_use
    cuda_driver.borrow_context()
    assert library.contexts == ([71] if in_use else [])


@linux
def test_cuda_is_ready_once_anybody_called_for_it(loadable: dict[str, Any]) -> None:
    assert not cuda_driver.cuda_is_initialized()
    library = loadable[cuda_driver.LIBRARIES[0]] = Driver(initialised=False)
    assert not cuda_driver.cuda_is_initialized()
    library._initialised = True
    assert cuda_driver.cuda_is_initialized()


@linux
def test_asking_often_makes_no_garbage(loadable: dict[str, Any]) -> None:
    loadable[cuda_driver.LIBRARIES[0]] = Driver()
    first = cuda_driver._loaded_driver()
    del loadable[cuda_driver.LIBRARIES[0]]  # a program may have switched the collector off
    assert cuda_driver._loaded_driver() is first is not None


@linux
def test_every_gpu_in_use_is_waited_for(loadable: dict[str, Any]) -> None:
    library = loadable[cuda_driver.LIBRARIES[0]] = Driver(active=(0, 2))
    library.contexts = [5]  # the program made it for itself
    cuda_driver.wait_for_gpus()
    assert library.waited == [5, 70, 72]
    assert (library.contexts, library.retained) == ([5], [])


@linux
def test_a_graph_that_is_captured_is_not_disturbed(
    loadable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = loadable[cuda_driver.LIBRARIES[0]] = Driver(active=(0,))
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    cuda_driver.wait_for_gpus()
    assert library.waited == []


@linux
def test_a_gpu_that_has_failed_the_program_does_not_make_us_raise(
    loadable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    library = loadable[cuda_driver.LIBRARIES[0]] = Driver(active=(0,))
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=failed)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    cuda_driver.wait_for_gpus()
    assert library.waited == []
