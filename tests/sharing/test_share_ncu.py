from __future__ import annotations

import csv
import io
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.errors import DamagedCaptureError
from gpusight.readers.ncu.ncu_container import read_container, read_content
from gpusight.readers.open import open_trace
from gpusight.readers.protobuf_wire import WireError
from gpusight.sharing.leak_report import Category, ShareOptions, Treatment
from gpusight.sharing.share_ncu import NcuCleaner, fields_of, sized_block
from gpusight.trace.schema import TABLES
from tests.readers.ncu.ncu_reports import Parts, launch, report, rule, text, whole
from tests.shared import DATA, EVERY_NCU_REPORT, name, needs_shared, tool
from tests.sharing.spelled import secret, secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.trace.trace import Trace

REPORTS = sorted(DATA.glob("*.ncu-rep.xz"))
SHARE = ShareOptions(salt=b"salt")
HASHED = ShareOptions(hash_names=True, salt=b"salt")
IDENTIFYING = "(?i)uuid|attribute_pci_"
"""Metrics that say which very GPU it was."""
REMOVED = {
    ("profiles", "address"),
    ("devices", "bus"),
    ("processes", "name"),
    *((table, c.name) for table in ("rule_results", "source_files", "code_lines", "diagnostics")
      for c in TABLES[table].columns),
}  # fmt: skip
NAMES = {
    *REMOVED,
    *(("profiles", column) for column in ("name", "base_name", "mangled_name", "ranges")),
    ("counter_instances", "text"),
}


def columns(trace: Trace) -> Iterator[tuple[str, str]]:
    for table, schema in TABLES.items():
        if trace.has(table):
            yield from ((table, c.name) for c in schema.columns if trace.has(table, c.name))


def values(trace: Trace, table: str, column: str) -> list[Any]:
    frame = trace.table(table, [column])
    if table in ("counters", "counter_instances"):
        metric = trace.table(table, ["metric"])["metric"].cast(pl.String)
        frame = frame.filter(~metric.str.contains(IDENTIFYING))
    return frame[column].to_list()


def check_tables(path: Path, copy: Path, options: ShareOptions, but: set[tuple[str, str]]) -> None:
    NcuCleaner(path).write(copy, options)
    table_name, other = open_trace(path, cache=False), open_trace(copy, cache=False)
    assert set(columns(table_name)) - but == set(columns(other)) - but
    for table, column in set(columns(table_name)) - but:
        same = pl.Series(values(table_name, table, column), strict=False)
        shared = pl.Series(values(other, table, column), strict=False)
        if column in ("process", "pid"):  # counted from 1 in a copy
            same, shared = same.rank("dense"), shared.rank("dense")
        assert same.equals(shared), (table, column)
    assert (table_name.meta.tool_version, table_name.meta.os) == (
        other.meta.tool_version,
        other.meta.os,
    )


EVERY_SMALL_REPORT = [path for path in EVERY_NCU_REPORT if path.stat().st_size < 600_000]
"""The two that are larger take as long as all others, and hold nothing else."""


@pytest.mark.parametrize("path", REPORTS, ids=name)
def test_a_copy_has_the_same_tables(path: Path, tmp_path: Path) -> None:
    check_tables(path, tmp_path / "copy.ncu-rep", SHARE, REMOVED)
    check_tables(path, tmp_path / "hashed.ncu-repz", HASHED, NAMES)


@needs_shared
@pytest.mark.parametrize("path", EVERY_SMALL_REPORT, ids=name)
def test_every_copy_has_the_same_tables(path: Path, tmp_path: Path) -> None:
    check_tables(path, tmp_path / "copy.ncu-rep", SHARE, REMOVED)


@pytest.mark.parametrize("options", [SHARE, HASHED])
def test_looking_and_writing_count_the_same(options: ShareOptions, tmp_path: Path) -> None:
    cleaner = NcuCleaner(REPORTS[0])
    assert cleaner.scan(options) == cleaner.write(tmp_path / "copy.ncu-rep", options)


# As NVIDIA's own program reads it -----------------------------------------------------------------


def raw_page(report: Path) -> dict[str, list[str]]:
    """Print the page of all metrics, one column a metric; nothing where ncu cannot read it."""
    ncu = tool("ncu", "nsight-compute/ncu")
    command = [ncu, "--import", str(report), "--page", "raw", "--csv"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode:
        return {}
    csv.field_size_limit(1 << 30)
    heading, *rows = csv.reader(io.StringIO(ran.stdout))
    return {title: [row[at] for row in rows] for at, title in enumerate(heading)}


def check_raw_page(path: Path, folder: Path) -> None:
    plain = folder / "plain.ncu-rep"
    plain.write_bytes(read_content(path).data)
    before = raw_page(plain)
    if not before:
        pytest.skip("the ncu that is here cannot read the original")
    NcuCleaner(path).write(folder / "copy.ncu-rep", SHARE)
    after = raw_page(folder / "copy.ncu-rep")
    removed = {title for title in before if "attribute_pci_" in title or "uuid" in title.lower()}
    absent = {"Process Name", "Host Name", "Process ID"}
    assert before.keys() - after.keys() <= removed | {t for t in before if "_Range:" in t}
    for title in before.keys() & after.keys() - absent:
        assert before[title] == after[title], title


@pytest.mark.parametrize("path", REPORTS, ids=name)
def test_ncu_prints_the_same_metrics(path: Path, tmp_path: Path) -> None:
    check_raw_page(path, tmp_path)


@needs_shared
@pytest.mark.parametrize("path", EVERY_SMALL_REPORT, ids=name)
def test_ncu_prints_the_same_metrics_of_every_report(path: Path, tmp_path: Path) -> None:
    check_raw_page(path, tmp_path)


# Secrets in every text ----------------------------------------------------------------------------

_LAYERS = 12
_KEPT_FIELDS = {(5,), (6,), (7,)}
"""Of a kernel's result: its names."""
_NVTX, _COUNTER = 21, 13


class Planting:
    """Plants a secret in every field that holds a text or unknown bytes, however deep."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.kept: set[str] = set()

    def text(self, old: bytes, *, kept: bool) -> bytes:
        self.secrets.append(secret(len(self.secrets)))
        if kept:
            self.kept.add(self.secrets[-1])
        return old + self.secrets[-1].encode()

    def message(self, data: bytes, path: tuple[int, ...] = ()) -> bytes:
        """Plant in a message; texts are told from messages by whether they can be printed."""
        written = []
        for field in fields_of(data):
            content = data[field.start : field.end]
            where = (*path, field.number)
            if not field.is_bytes:
                written.append(data[field.first : field.end])
            elif is_message(content) and len(path) < _LAYERS:
                written.append(sized_block(field.number, self.message(content, where)))
            else:
                kept = where in _KEPT_FIELDS or where[0] in (_NVTX, _COUNTER)
                written.append(sized_block(field.number, self.text(content, kept=kept)))
        # A field that nobody knows, in every message.
        written.append(sized_block(777, self.text(b"", kept=False)))
        return b"".join(written)


def is_message(content: bytes) -> bool:
    if not content or (content.isascii() and content.decode("ascii").isprintable()):
        return False
    try:
        return all(0 < field.number < 1000 for field in fields_of(content))
    except WireError:
        return False


def planted_report(path: Path) -> tuple[bytes, Planting]:
    """A report with one kernel of each binary, and secrets in everything."""
    content = read_content(path)
    container = read_container("report", content.data)
    planting = Planting()

    def at(span: Any) -> bytes:
        return bytes(content.data[span.start : span.end])

    session = b"".join(
        whole(number, value) if isinstance(value, int) else sized_block(number, value)
        for piece in container.session
        for number, found_values in piece.items()
        for value in found_values
    )
    settings = (
        text(1, "/opt/acme/app") + text(2, "/home/jane") + text(3, "--key k") + text(4, "K=v")
    )
    session += sized_block(9, settings) + text(7, "comment") + sized_block(10, text(7, "sections"))
    source = (
        whole(1, 5)
        + text(2, "code")
        + sized_block(4, b"\x7fELF")
        + sized_block(8, sized_block(1, text(1, "a.cu")))
    )
    extra = (
        text(12, "c")
        + text(26, "ctx")
        + sized_block(28, sized_block(1, text(1, "m") + text(3, "f.py")))
    )
    messages = [planting.message(at(result.span) + extra) for result in container.results[:2]]
    strings = [planting.text(s.encode(), kept=True) for s in container.strings]
    header = whole(1, 1) + sized_block(3, planting.message(session))
    header += sized_block(4, b"".join(sized_block(1, s) for s in strings)) + sized_block(
        900, planting.text(b"", kept=False)
    )
    process = (
        whole(1, 7)
        + sized_block(2, planting.text(b"h", kept=False))
        + sized_block(3, planting.text(b"p", kept=False))
    )
    data = b"NVR\0" + sized(whole(1, 7)) + with_payload(header, planting.message(source))
    data += with_payload(whole(2, len(messages)) + sized_block(6, process), *messages)
    return data, planting


def sized(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def with_payload(header: bytes, *messages: bytes) -> bytes:
    payload = b"".join(map(sized, messages))
    return sized(header + whole(5, len(payload))) + payload


@pytest.mark.parametrize(("path", "options"), [(REPORTS[1], HASHED), (REPORTS[2], SHARE)])
def test_no_secret_is_in_the_copy(path: Path, options: ShareOptions, tmp_path: Path) -> None:
    data, planting = planted_report(path)
    (tmp_path / "report.ncu-rep").write_bytes(data)
    assert len(planting.secrets) > 1500
    NcuCleaner(tmp_path / "report.ncu-rep").write(tmp_path / "copy.ncu-rep", options)
    copy = (tmp_path / "copy.ncu-rep").read_bytes()
    left = secrets_in(copy, planting.secrets)
    if options.hash_names:
        assert left == set()
    else:
        assert left <= planting.kept
        assert left, "names are kept, so the test can find what is there"


def test_what_is_kept_is_listed(tmp_path: Path) -> None:
    session = sized_block(
        4, text(1, "Linux") + text(5, "acme-host") + sized_block(7, text(1, "10.0.0.1"))
    )
    session += sized_block(
        6,
        whole(1, 0)
        + text(2, "NVIDIA H200 acme")
        + sized_block(3, text(1, "device__attribute_pci_bus_id") + sized_block(2, whole(4, 9))),
    )
    session += sized_block(9, text(1, "/opt/acme") + text(4, "TOKEN=abc"))
    nvtx = sized_block(
        21,
        sized_block(
            2, whole(1, 99) + sized_block(2, whole(1, 0) + sized_block(3, text(1, "acme step")))
        ),
    )
    one = launch(
        "acme_kernel",
        {"gpu__time_duration.sum": 5.0, "nvlink__uuidDev0": 7},
        extra=nvtx + rule("SOL", "said"),
    )
    path = tmp_path / "report.ncu-rep"
    source = (
        whole(1, 5)
        + sized_block(4, b"\x7fELF")
        + sized_block(8, sized_block(1, text(1, "a.cu") + text(2, "x")))
    )
    path.write_bytes(report(one, session=session, sources=(source,)))
    leaks = {(x.category, x.treatment) for x in NcuCleaner(path).scan(SHARE).leaks}
    assert leaks >= {
        (Category.ENVIRONMENT, Treatment.REMOVED),
        (Category.HOST_NAMES, Treatment.REMOVED),
        (Category.NETWORK, Treatment.REMOVED),
        (Category.FILE_PATHS, Treatment.REMOVED),
        (Category.FILE_CONTENTS, Treatment.REMOVED),
        (Category.CODE, Treatment.REMOVED),
        (Category.PROGRAM_OUTPUT, Treatment.REMOVED),
        (Category.PROCESSES, Treatment.REMOVED),
        (Category.HARDWARE_IDS, Treatment.REMOVED),
        (Category.MACHINE, Treatment.SHORTENED),
        (Category.KERNEL_NAMES, Treatment.KEPT),
        (Category.PROGRAM_TEXTS, Treatment.KEPT),
    }
    NcuCleaner(path).write(tmp_path / "copy.ncu-rep", SHARE)
    trace = open_trace(tmp_path / "copy.ncu-rep", cache=False)
    assert trace.table("devices", ["name"])["name"].to_list() == ["NVIDIA H200"]
    assert trace.table("profiles", ["name", "ranges"]).rows() == [("acme_kernel", "acme step")]
    assert trace.table("counters", ["metric"])["metric"].to_list() == ["gpu__time_duration.sum"]


def test_texts_of_counters_are_kept_where_they_are_the_profilers(tmp_path: Path) -> None:
    metrics = {
        "launch__func_cache_config": "CachePreferNone",
        "launch__kernel_name": "acme_kernel",
        "acme__metric": "acme text",
        "sass__inst_executed_per_opcode": Parts(3, {"FFMA": 1, "ACME!": 2}),
    }
    path = tmp_path / "report.ncu-rep"
    path.write_bytes(report(launch("acme_kernel", metrics)))
    NcuCleaner(path).write(tmp_path / "copy.ncu-rep", SHARE)
    trace = open_trace(tmp_path / "copy.ncu-rep", cache=False)
    shown = dict(trace.table("counters", ["metric", "text"]).rows())
    assert shown["launch__func_cache_config"] == "CachePreferNone"
    assert shown["launch__kernel_name"] == "acme_kernel"
    assert "acme" not in str(shown["acme__metric"])
    keys = trace.table("counter_instances", ["key"])["key"].to_list()
    assert keys[0] == "FFMA"
    assert "ACME" not in str(keys[1])


# Other files --------------------------------------------------------------------------------------


def test_a_report_that_is_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(report(launch("one"), launch("two"))[:-5])
    scan = NcuCleaner(path).write(tmp_path / "copy.ncu-rep", SHARE)
    trace = open_trace(tmp_path / "copy.ncu-rep", cache=False)
    assert trace.table("profiles", ["name"])["name"].to_list() == ["one"]
    assert "damaged" in scan.notes[0]
    assert trace.meta.warnings == ()


def test_a_launch_that_cannot_be_decoded_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "odd.ncu-rep"
    path.write_bytes(report(launch("one"), launch("two", extra=b"\x0a\xff\xff\xff")))
    scan = NcuCleaner(path).write(tmp_path / "copy.ncu-rep", SHARE)
    assert "not copied: 1" in scan.notes[0]


@pytest.mark.parametrize("data", [b"NVR\0", b"NVR\0\xff\xff\xff\xff", b"NVR\0" + b"\0" * 64])
def test_what_is_no_report_is_refused_and_leaves_nothing(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.ncu-rep"
    path.write_bytes(data)
    with pytest.raises(DamagedCaptureError):
        gs.share(path, tmp_path / "copy.ncu-rep")
    assert list(tmp_path.iterdir()) == [path]
