"""When a report does not add up, an installed nsys that is new enough reads it instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusight.errors import UndecodableReportError
from gpusight.readers.cache_folder import clear_cache
from gpusight.readers.open import open_trace
from tests.shared import DATA

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")

STAND_IN = """#!/bin/sh
case "$1" in
--version) echo "NVIDIA Nsight Systems version {version}-0" ;;
export) shift; while [ "$1" != "-o" ]; do shift; done; {action} ;;
esac
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a report with a damaged event block; its directory and version are intact."""
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    data = bytearray((DATA / "graph.nsys-rep").read_bytes())
    middle = data.index(b"QDTEXT00") + 12_000
    data[middle : middle + 600] = b"\xff" * 600
    path = tmp_path / "captures" / "report.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(data)
    return path


def install_nsys(folder: Path, version: str, action: str) -> None:
    script = folder / "bin" / "nsys"
    script.parent.mkdir()
    script.write_text(STAND_IN.format(version=version, action=action))
    script.chmod(0o755)


def test_without_nsys_the_error_names_the_command(report: Path) -> None:
    with pytest.raises(UndecodableReportError) as caught:
        open_trace(report).validate()
    message = str(caught.value)
    assert "nsys export --type sqlite --force-overwrite true -o report.sqlite" in message
    assert "needs nsys >= 2025.3" in message


def test_a_newer_nsys_exports_it_into_the_cache(report: Path, tmp_path: Path) -> None:
    install_nsys(tmp_path, "2026.1.0.0", f'cp "{DATA}/graph.sqlite" "$2"')
    trace = open_trace(report)
    trace.validate()
    assert trace.row_count("graph_launches") == 10
    assert any("read through the installed nsys" in note for note in trace.meta.notes)
    assert [f.name for f in report.parent.iterdir()] == ["report.nsys-rep"]
    assert list((tmp_path / "cache").rglob("export.sqlite"))


@pytest.mark.parametrize(
    ("version", "action"), [("2021.1.1.1", 'touch "$2"'), ("2026.1.0.0", "exit 3")]
)
def test_an_older_or_failing_nsys_changes_nothing(
    report: Path, tmp_path: Path, version: str, action: str
) -> None:
    install_nsys(tmp_path, version, action)
    with pytest.raises(UndecodableReportError):
        open_trace(report).validate()


def exports(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_a_damaged_export_is_made_again(report: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    install_nsys(tmp_path, "2026.1.0.0", f'echo run >> "{log}"; cp "{DATA}/graph.sqlite" "$2"')
    for _ in range(2):
        with open_trace(report) as trace:
            trace.validate()
            assert trace.row_count("graph_launches") == 10
    assert exports(log) == 1
    (export,) = (tmp_path / "cache").rglob("export.sqlite")
    data = bytearray(export.read_bytes())
    data[40_000:40_064] = bytes(64)
    export.write_bytes(data)
    with open_trace(report) as trace:
        trace.validate()
        assert trace.row_count("graph_launches") == 10
        assert any("damaged and was replaced" in note for note in trace.meta.notes)
    assert exports(log) == 2


def test_an_export_in_use_is_not_deleted(report: Path, tmp_path: Path) -> None:
    install_nsys(tmp_path, "2026.1.0.0", f'cp "{DATA}/graph.sqlite" "$2"')
    with open_trace(report) as trace:
        trace.validate()
        assert clear_cache().captures == 0
        assert trace.row_count("graph_launches") == 10
    assert clear_cache().captures == 1
    assert not list((tmp_path / "cache").rglob("export.sqlite"))


def test_a_cache_that_is_refused_gets_no_export(report: Path, tmp_path: Path) -> None:
    install_nsys(tmp_path, "2026.1.0.0", f'cp "{DATA}/graph.sqlite" "$2"')
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("text")
    with open_trace(report) as trace:
        trace.validate()
        assert trace.row_count("graph_launches") == 10
        assert "its folder contains files that gpusight did not create" in trace.warnings[0]
    assert [f.name for f in (tmp_path / "cache").iterdir()] == ["thesis.tex"]
