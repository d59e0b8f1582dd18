"""Which captures the words of a command line mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusight.comparison import inputs
from gpusight.comparison.baseline_file import save_baseline
from gpusight.comparison.inputs import side_inputs
from gpusight.errors import GpusightError, UsageError
from tests.comparison.digests import steady


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"SQLite format 3\0")


def names(*texts: str) -> list[str]:
    return [path.as_posix() for path in side_inputs(texts).paths]


def test_files_stay_in_the_order_given(folder: Path) -> None:
    files(folder, "b.sqlite", "a.sqlite")
    assert names("b.sqlite", "a.sqlite") == ["b.sqlite", "a.sqlite"]


def test_a_glob_counts_as_people_do(folder: Path) -> None:
    files(folder, "r1.sqlite", "r10.sqlite", "r2.sqlite", "r.sqlite", "other.sqlite")
    assert names("r*.sqlite") == ["r1.sqlite", "r2.sqlite", "r10.sqlite", "r.sqlite"]


def test_what_record_writes_next_to_captures_is_no_capture(folder: Path) -> None:
    files(folder, "r1.sqlite", "r2.sqlite", "r1.sqlite.pace.json", "r2.sqlite.stacks")
    assert names("*") == names(".") == ["r1.sqlite", "r2.sqlite"]


def test_a_list_separated_by_commas(folder: Path) -> None:
    files(folder, "a.sqlite", "b1.sqlite", "b2.sqlite")
    assert names("a.sqlite, b*.sqlite") == ["a.sqlite", "b1.sqlite", "b2.sqlite"]
    assert names("a*.sqlite,b*.sqlite") == ["a.sqlite", "b1.sqlite", "b2.sqlite"]


@pytest.mark.parametrize("name", ["a,b.sqlite", "run[1].sqlite", "what?.sqlite", "C:x.sqlite"])
def test_a_file_of_that_very_name_is_no_list_and_no_glob(folder: Path, name: str) -> None:
    files(folder, name, "a", "b.sqlite", "run1.sqlite")
    assert names(name) == [name]


@pytest.mark.usefixtures("folder")
def test_a_path_of_windows_is_one_path() -> None:
    with pytest.raises(GpusightError, match="no such file: C:"):
        names("C:\\runs\\base.sqlite")


def test_a_folder_of_captures(folder: Path) -> None:
    files(folder, "runs/r10.sqlite", "runs/r9.nsys-rep", "runs/x.ncu-rep", "runs/notes.txt")
    files(folder, "runs/snapshot.pickle", "runs/sub/deep.sqlite")
    assert names("runs") == ["runs/r9.nsys-rep", "runs/r10.sqlite"]


def test_folders_with_too_many_files_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(folder, "a.sqlite", "b.sqlite", "c.sqlite")
    monkeypatch.setattr(inputs, "_MAX_LISTED", 2)
    for text in (str(folder), str(folder / "*")):
        with pytest.raises(UsageError, match="has more than 2 files"):
            side_inputs([text])


def test_a_folder_may_hold_baselines_and_plain_traces(folder: Path) -> None:
    files(folder, "runs/a.sqlite")
    save_baseline([steady(compute_matmul=1)], folder / "runs/base.json")
    (folder / "runs/plain.json").write_text('{"traceEvents": []}')
    (folder / "runs/package.json").write_text('{"name": "x"}')
    # A baseline that lies beside captures is not one of them, unless it is named.
    assert names("runs") == ["runs/a.sqlite", "runs/plain.json"]
    assert names("runs/[abp]*a[is]*") == ["runs/plain.json"]
    assert names("runs/*[ak]*ge.json,runs/b*") == ["runs/package.json", "runs/base.json"]
    assert names("runs/base.json", "runs") == ["runs/base.json", "runs/a.sqlite", "runs/plain.json"]
    (folder / "old").mkdir()
    save_baseline([steady(compute_matmul=1)], folder / "old/base.json")
    assert names("old") == names("old/*") == ["old/base.json"]


def test_a_folder_that_is_a_capture_stays_one(folder: Path) -> None:
    files(folder, "run/StringIds.parquet", "run/CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    assert names("run") == ["run"]


def test_a_folder_of_jax(folder: Path) -> None:
    files(folder, "log/plugins/profile/2026_01_01/host.xplane.pb")
    assert names("log") == ["log/plugins/profile/2026_01_01/host.xplane.pb"]


def test_a_report_and_its_export_are_one_run(folder: Path) -> None:
    files(folder, "r1.nsys-rep", "r1.sqlite", "r2.nsys-rep")
    assert names("r*") == ["r1.sqlite", "r2.nsys-rep"]
    assert names("r1.nsys-rep", "r1.sqlite") == ["r1.sqlite"]
    assert names("r1.nsys-rep") == ["r1.nsys-rep"]


def test_what_was_left_out_is_told(folder: Path) -> None:
    files(folder, "r1.nsys-rep", "r1.sqlite", "r2.sqlite", "r3.sqlite")
    (folder / "link.sqlite").symlink_to(folder / "r2.sqlite")
    meant = side_inputs(["r1.nsys-rep", "r1.sqlite", "r2.sqlite", "link.sqlite", "r3.sqlite"])
    assert {path.name: note for path, note in meant.notes.items()} == {
        "r1.sqlite": "r1.nsys-rep is the same capture: counted once",
        "r2.sqlite": "link.sqlite is the same capture: counted once",
    }
    twice = side_inputs(["r3.sqlite", "./r3.sqlite", "r2.sqlite"])
    assert twice.notes == {Path("r3.sqlite"): "named more than once: counted once"}


def test_what_is_named_twice_counts_once(folder: Path) -> None:
    files(folder, "r1.sqlite", "r2.sqlite")
    assert names("r1.sqlite", "./r1.sqlite", "r*.sqlite") == ["r1.sqlite", "r2.sqlite"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gone.sqlite", "no such file: gone.sqlite"),
        ("gone*.sqlite", "no file matches gone"),
        ("a.sqlite,gone.sqlite", "no such file: gone.sqlite"),
        ("empty", "no captures to compare"),
        ("", "is not a path"),
        (" ", "is not a path"),
        ("a\0b", "is not a path"),
        ("x" * 5000, "no such file"),
        ("--steps", "--steps stands after --, where everything is a file; write options before --"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(folder: Path, text: str, says: str) -> None:
    files(folder, "a.sqlite")
    (folder / "empty").mkdir()
    with pytest.raises(GpusightError) as error:
        side_inputs([text])
    assert says in str(error.value)
    assert "\n" not in str(error.value)
