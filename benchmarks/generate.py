"""Write an nsys SQLite capture of any size, shaped like a real training run.

    python benchmarks/generate.py 1000000 benchmarks/out/1m.sqlite

N kernels, N runtime calls that launch them and N NVTX ranges: a range around nine of ten launches,
nested in ranges of 10 (layer), 100 (pass) and 1000 (step) launches, by two threads of one process
in turn.
The schema is that of nsys 2025.3 (3.20.3), so the real `nsys stats` reads the file too.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

PID = 4242
GLOBAL_PID = (1 << 56) | (PID << 24)
THREADS = (PID, PID + 7)
RUNTIME_CLASS, PUSH_POP = 0, 59
KERNEL_NAMES = 180
RANGE_NAMES = 400
PERIOD_NS = 10_000

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER NOT NULL, duration INTEGER NOT NULL,
  startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT,
  busLocation TEXT, isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER,
  memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, pwGpuId INTEGER, uuid TEXT,
  luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_NSYS_EVENT_CLASS (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
  blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
  staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
  gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
  sharedMemoryLimitConfig INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
  doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER,
  jsonText TEXT, binaryData TEXT);
"""

NAME_FORMS = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::Functor{}<float>>(int, T2)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{}x64x8_stage3_ffma_execute_kernel__5x_cublas",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_{}x128_32x4_nt_align8>(T1::P)",
)


def generate(kernels: int, path: Path) -> None:
    """Write the capture; an existing file of that name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA)
        _insert_names(db)
        _insert_target(db, kernels)
        db.execute("CREATE TEMP TABLE digit (d INTEGER)")
        db.executemany("INSERT INTO digit VALUES (?)", [(d,) for d in range(1000)])
        for first in range(0, kernels, 1_000_000):
            _insert_events(db, first, min(first + 1_000_000, kernels))
        _insert_parents(db, kernels)


def _insert_names(db: sqlite3.Connection) -> None:
    names = [NAME_FORMS[i % 3].format(i) for i in range(KERNEL_NAMES)]
    names += ["cudaLaunchKernel_v7000", "[NSys]", "python3", "worker"]
    names += [f"layer_{i}" for i in range(RANGE_NAMES)]
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))


def _insert_target(db: sqlite3.Connection, kernels: int) -> None:
    db.execute(
        "INSERT INTO ANALYSIS_DETAILS VALUES (?, ?, 0, ?)",
        (1 << 56, (kernels + 10) * PERIOD_NS, (kernels + 10) * PERIOD_NS),
    )
    db.execute("INSERT INTO PROCESSES VALUES (?, ?, 'python3')", (GLOBAL_PID, PID))
    for tid in THREADS:
        db.execute(
            "INSERT INTO ThreadNames VALUES (?, NULL, ?)", (KERNEL_NAMES + 2, GLOBAL_PID | tid)
        )
    db.execute(
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H200', '0000:01:00.0', 1, 62914560,"
        " 150110011392, 4800000000000, 1980000000, 132, 0, NULL, NULL, 'GH100', 0, 9, 0)"
    )
    db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, ?)", (PID,))
    db.execute(
        "INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES (59, 'NvtxPushPopRange', 'NVTX Push/Pop Range')"
    )
    meta = {
        "EXPORT_SCHEMA_VERSION": "3.20.3",
        "EXPORT_SCHEMA_VERSION_MAJOR": "3",
        "EXPORT_SCHEMA_VERSION_MINOR": "20",
        "EXPORT_SCHEMA_VERSION_MICRO": "3",
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": "2025.3.2.367",
    }
    db.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", meta.items())


def _insert_events(db: sqlite3.Connection, first: int, last: int) -> None:
    """Insert launches `first` to `last`, written by SQLite itself: a Python loop takes minutes."""
    numbers = f"(SELECT a.d * 1000 + b.d + {first} AS i FROM digit a, digit b)"
    first_thread, second_thread = (GLOBAL_PID | tid for tid in THREADS)
    thread = f"CASE WHEN (i / 1000) % 5 = 4 THEN {second_thread} ELSE {first_thread} END"
    db.execute(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT i * {PERIOD_NS} + 2000,"
        f" i * {PERIOD_NS} + 5000 + (i * 7919) % 1500, {RUNTIME_CLASS}, {thread}, i + 1,"
        f" {KERNEL_NAMES}, 0, NULL FROM {numbers} WHERE i < {last}"
    )
    db.execute(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT i * {PERIOD_NS} + 8000,"
        f" i * {PERIOD_NS} + 9000 + (i * 104729) % 8000, 0, 1, NULL, 7, i + 1, {GLOBAL_PID},"
        f" (i * 31) % {KERNEL_NAMES}, (i * 31) % {KERNEL_NAMES}, NULL, 1, 0, 32,"
        f" 1 + i % 1024, 1, 1, 256, 1, 1, 0, 1024 * (i % 4), 0, 0, i + 1, 32768, NULL, 0"
        f" FROM {numbers} WHERE i < {last}"
    )
    db.execute(
        f"INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)"
        f" SELECT i * {PERIOD_NS} + 1000, i * {PERIOD_NS} + 7500, {PUSH_POP},"
        f" 'aten::op_' || ((i * 17) % {RANGE_NAMES}), {thread}, 0 FROM {numbers}"
        f" WHERE i < {last} AND i % 10 != 0"
    )


def _insert_parents(db: sqlite3.Connection, kernels: int) -> None:
    base = KERNEL_NAMES + 4
    for span, margin in ((10, 600), (100, 400), (1000, 200)):
        start, count = PERIOD_NS * span, kernels // span
        # Steps count; layers and passes only repeat.
        column, name = "textId", f"{base} + i % {RANGE_NAMES if span == 10 else span // 20}"
        thread = (
            f"CASE WHEN (i * {span} / 1000) % 5 = 4 THEN {GLOBAL_PID | THREADS[1]}"
            f" ELSE {GLOBAL_PID | THREADS[0]} END"
        )
        if span == 1000:
            # The main thread holds every step, whichever thread launches.
            column, name, thread = "text", "'step_' || i", str(GLOBAL_PID | THREADS[0])
        db.execute(
            f"INSERT INTO NVTX_EVENTS (start, end, eventType, {column}, globalTid, domainId)"
            f" WITH RECURSIVE n(i) AS"
            f" (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})"
            f" SELECT i * {start} + {margin}, (i + 1) * {start} - {margin}, {PUSH_POP},"
            f" {name}, {thread}, 0 FROM n"
        )


if __name__ == "__main__":
    generate(int(sys.argv[1]), Path(sys.argv[2]))
