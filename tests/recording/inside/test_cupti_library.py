"""libcupti through ctypes, against a stand-in in C that calls back from a thread of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpusight.errors import RecordError
from gpusight.recording.inside import cupti_library
from gpusight.recording.inside.cupti_buffers import BufferWalker, CuptiBuffers, StringIds
from gpusight.recording.inside.cupti_library import (
    DRIVER_CALLS,
    RUNTIME,
    RUNTIME_CALLS,
    Cupti,
)
from gpusight.recording.inside.cupti_write import is_wanted, unwanted_functions

if TYPE_CHECKING:
    from pathlib import Path

_STAND_IN = r"""
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);
static requested_t requested; static completed_t completed; static int enabled;
int cuptiActivityRegisterCallbacks(requested_t r, completed_t c) {
  requested = r;
  completed = c;
  return 0;
}
int cuptiActivityEnable(int kind) { if (kind == 99) return 21; enabled = kind; return 0; }
int cuptiActivityDisable(int kind) { enabled = 0; return 0; }
int cuptiGetVersion(uint32_t *v) { *v = 130000; return 0; }
int cuptiGetTimestamp(uint64_t *t) { *t = 1794756449633000001ull; return 0; }
int cuptiGetResultString(int code, const char **text) {
  *text = "CUPTI_ERROR_INVALID_KIND";
  return 0;
}
int cuptiActivityGetNumDroppedRecords(void *c, uint32_t s, size_t *n) { *n = 3; return 0; }
int cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t on) { return on ? 1 : 0; }
int cuptiSetThreadIdType(int type) { return type == 1 ? 0 : 1; }
int cuptiGetCallbackName(int domain, uint32_t cbid, const char **name) {
  static const char *runtime[] = {0, "cudaGetDevice_v3020", "cudaMalloc_v3020"};
  if (domain != 2 || cbid > 2) return 1;
  *name = runtime[cbid];
  return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
  uint8_t *next = *record ? *record + 40 : buffer;
  if (next >= buffer + valid) return 12;
  *record = next;
  return 0;
}
static void *fill(void *unused) {
  uint8_t *buffer; size_t size, most;
  requested(&buffer, &size, &most);
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t *words = (uint32_t *)(buffer + 40 * i);
    memset(words, 0, 40);
    words[0] = 5; words[1] = 211; words[8] = i + 1;
    uint64_t start = 1000 + i; memcpy(words + 2, &start, 8);
  }
  completed(0, 0, buffer, size, 120);
  return 0;
}
int cuptiActivityFlushAll(uint32_t flag) {
  pthread_t thread;
  if (!enabled) return 0;
  pthread_create(&thread, 0, fill, 0);
  return pthread_join(thread, 0);
}
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("cupti")
    source, built = folder / "cupti.c", folder / "libcupti.so.13"
    source.write_text(_STAND_IN)
    command = [str(compiler), "-shared", "-fPIC", "-pthread", "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    return built


def test_records_come_back_from_a_thread_of_the_library(stand_in: Path) -> None:
    cupti = Cupti(stand_in)
    walker = BufferWalker(cupti)
    buffers = CuptiBuffers(walker, StringIds())
    cupti.register(buffers.request, buffers.complete)
    assert cupti.enable(RUNTIME) == ""
    cupti.flush(forced=True)
    cupti.flush(forced=True)
    rows = [row for part in buffers.contents() for _, found in walker.rows(part) for row in found]
    assert [(row[0], row[1], row[5]) for row in rows] == [
        (211, 1000, 1), (211, 1001, 2), (211, 1002, 3),
        (211, 1000, 1), (211, 1001, 2), (211, 1002, 3),
    ]  # fmt: skip
    assert cupti.dropped == 6
    assert buffers.lost_bytes == 0


def test_small_questions(stand_in: Path) -> None:
    cupti = Cupti(stand_in)
    assert cupti.version == "13.0"
    assert cupti.time_ns() == 1_794_756_449_633_000_001
    assert cupti.use_system_thread_ids()
    assert cupti.function_name(RUNTIME_CALLS, 1) == "cudaGetDevice_v3020"
    assert cupti.function_name(DRIVER_CALLS, 1) is None
    assert cupti.enable(99) == "CUPTI_ERROR_INVALID_KIND"
    assert unwanted_functions(cupti) == [(RUNTIME_CALLS, 1)]
    assert cupti.switch_off(RUNTIME_CALLS, 1)
    assert not cupti.switch_off(DRIVER_CALLS, 1)  # an older library has no such switch


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cudaLaunchKernel_v7000", True),
        ("cudaLaunchKernelExC_v11060", True),
        ("cudaGraphLaunch_v10000", True),
        ("cudaMemcpyAsync_v3020", True),
        ("cudaDeviceSynchronize_v3020", True),
        ("cudaMalloc_v3020", True),
        ("cudaEventRecord_v3020", True),
        ("cudaStreamWaitEvent_v3020", True),
        ("cudaGetLastError_v3020", False),
        ("cudaPeekAtLastError_v3020", False),
        ("cudaSetDevice_v3020", False),
        ("cudaStreamIsCapturing_v10000", False),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessor_v6000", False),
        ("__cudaPushCallConfiguration_v9000", False),
    ],
)
def test_runtime_calls_that_matter(name: str, wanted: bool) -> None:
    assert is_wanted(RUNTIME_CALLS, name) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cuLaunchKernelEx", True),
        ("cuMemcpyHtoDAsync_v2", True),
        ("cuStreamSynchronize", True),
        ("cuEventSynchronize", True),
        ("cuGraphLaunch", True),
        ("cuModuleLoadDataEx", True),
        ("cuMemAlloc_v2", True),
        ("cuKernelGetName", False),
        ("cuGetProcAddress_v2", False),
        ("cuCtxGetCurrent", False),
        ("cuStreamGetCaptureInfo_v2", False),
    ],
)
def test_driver_calls_that_matter(name: str, wanted: bool) -> None:
    assert is_wanted(DRIVER_CALLS, name) == wanted


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let only what the test puts there be found."""
    monkeypatch.setattr(cupti_library, "loaded_library", lambda: None)
    monkeypatch.setattr(cupti_library, "_SYSTEM", (str(tmp_path / "usr"),))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_wheels_come_before_toolkits(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cupti_library.find_library(13) is None
    _put(nowhere, "cuda/lib64/libcupti.so.13", "site/nvidia/cu13/lib/libcupti.so.13")
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "cuda"))
    assert cupti_library.find_library(13) == nowhere / "site/nvidia/cu13/lib/libcupti.so.13"


def test_a_library_newer_than_the_driver_is_passed_over(nowhere: Path) -> None:
    _put(
        nowhere,
        "site/nvidia/cu13/lib/libcupti.so.13",
        "site/nvidia/cuda_cupti/lib/libcupti.so.12",
        "site/nvidia/cuda_cupti/lib/libcupti.so.2025.1.1",
    )
    assert cupti_library.find_library(12) == nowhere / "site/nvidia/cuda_cupti/lib/libcupti.so.12"
    assert cupti_library.find_library(11) is None


def test_what_is_loaded_is_taken(stand_in: Path) -> None:
    Cupti(stand_in)
    assert cupti_library.loaded_library() is not None


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_library, "driver_version", lambda: None)
    with pytest.raises(RecordError, match=r"no CUDA driver answers \(libcuda.so.1\)"):
        cupti_library.load_cupti()


def test_without_a_library_it_says_what_to_install(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti_library, "driver_version", lambda: 12040)
    with pytest.raises(RecordError, match=r"for CUDA 12 or earlier; pip install cupti-python"):
        cupti_library.load_cupti()
    _put(nowhere, "site/nvidia/cu12/lib/libcupti.so.12")
    with pytest.raises(RecordError, match=r"libcupti.so.12 cannot be loaded"):
        cupti_library.load_cupti()
