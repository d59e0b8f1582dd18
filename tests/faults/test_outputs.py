"""Outputs under `kill -9`, full disks, read-only folders and links: complete, or as before."""

from __future__ import annotations

import csv
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.cli.output import write_file as cli_write_file
from gpusight.comparison.baseline_file import load_baseline, save_baseline
from gpusight.comparison.digest import Digest
from gpusight.errors import GpusightError, UsageError
from gpusight.output_files import PART_SUFFIX, replacing, staged, staged_folder, write_file
from gpusight.recording.inside.environment import STARTED_VARIABLE, RecorderPlan, written
from gpusight.recording.inside.step_recorders import RunFolder
from tests.faults.killing import killed_at
from tests.shared import DATA, full_disk

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
CAPTURE = str(DATA / "gpt_small_forward.sqlite")
OLD = "what was there before"
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def _ends_with(text: str) -> Callable[[Path], bool]:
    return lambda path: path.read_text(encoding="utf-8").rstrip().endswith(text)


def _is_csv(path: Path) -> bool:
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    return len(rows) > 10 and len({len(row) for row in rows}) == 1


def _is_json(path: Path) -> bool:
    return bool(json.loads(path.read_text(encoding="utf-8")))


WRITERS: dict[str, tuple[list[str], str, Callable[[Path], bool]]] = {
    "csv": (["kernels", CAPTURE], "out.csv", _is_csv),
    "picture": (["ledger", CAPTURE], "out.svg", _ends_with("</svg>")),
    "baseline": (["baseline", "save", CAPTURE], "out.json", _is_json),
    "table": (
        ["export", CAPTURE, "--to", "csv", "--tables", "kernels", "--force"],
        "out.csv",
        _is_csv,
    ),
    "timeline": (["export", CAPTURE, "--to", "chrome", "--force"], "out.json", _is_json),
}
"""Commands that write one file, and what tells that it is complete."""
EVERY = {
    **WRITERS,
    "report": (["report", CAPTURE], "out.html", _ends_with("</html>")),
    "parquet": (
        ["export", CAPTURE, "--to", "parquet", "--tables", "kernels", "--force"],
        "out.parquet",
        lambda path: pl.read_parquet(path).height > 10,
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


def _old_of(kind: str) -> str:
    """Give what the file holds before: a baseline replaces baselines only."""
    return '{"gpusight_baseline": 0}\n' if kind == "baseline" else OLD


LINES = [f"{number},kernel_{number}\n" for number in range(20)]
CONTENT = b"".join(b"%d,kernel_%d\n" % (number, number) for number in range(1000))


def _record_inside(path: Path) -> object:
    plan = RecorderPlan(recorder="torch", output=str(path).removesuffix(".csv"), overwrite=True)

    def write(part: Path) -> None:
        part.write_bytes(CONTENT)

    return written(plan, ".csv", None, write)


def _publish(path: Path) -> object:
    folder = RunFolder(path.parent, 0, since_s=0.0)
    return folder.publish("iteration_1", "x.csv", lambda part: part.write_bytes(CONTENT))


def _pickle_beside(path: Path) -> None:
    with staged(path) as part, part.open("xb") as file:
        pickle.dump(CONTENT, file)


KILLED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pieces": (
        OLD,
        lambda path: cli_write_file(path, LINES),
    ),
    "bytes": (OLD, lambda path: write_file(path, CONTENT)),
    "stage": (OLD, _pickle_beside),
    "record": (OLD, _record_inside),
    "run folder": (OLD, _publish),
    "baseline": ('{"gpusight_baseline": 0}\n', lambda path: save_baseline(DIGESTS[0], path)),
}
"""What writes files: what is there before, and how it writes."""
DIGESTS: list[tuple[Digest, ...]] = []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_every_write_a_file_is_old_or_complete(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTED_VARIABLE, str(2**62))  # files that are there are of an earlier run
    old, write = KILLED[kind]
    if kind == "baseline":
        gs.baseline(CAPTURE, tmp_path / "b.json")
        DIGESTS[:] = [load_baseline(tmp_path / "b.json")]
    target = folder / "out.csv"
    final = folder / "iteration_1" / "rank0_x.csv" if kind == "run folder" else target
    write(target)
    whole, number, killed = final.read_bytes(), 0, True
    while killed:
        shutil.rmtree(folder)
        folder.mkdir()
        if final == target:
            target.write_text(old)
        number += 1
        killed = killed_at(number, folder, lambda: write(target))
        result = final.read_bytes() if final.exists() else None
        assert result in (whole, old.encode() if final == target else None), number
        strays = {path for path in folder.rglob("*") if path.is_file()} - {final}
        assert all(path.name.endswith(PART_SUFFIX) for path in strays)
    assert number > 5, "nothing was counted"
    assert final.read_bytes() == whole


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("exists", [True, False])
def test_killed_at_every_write_each_file_of_a_folder_is_old_or_complete(
    folder: Path, *, exists: bool
) -> None:
    target = folder / "tables"
    names = ("a.csv", "b.csv", "c.csv")

    def write() -> None:
        with staged_folder(target) as part:
            for name in names:
                (part / name).write_bytes(CONTENT)

    number, killed = 0, True
    while killed:
        shutil.rmtree(folder)
        folder.mkdir()
        if exists:
            target.mkdir()
            (target / "b.csv").write_text(OLD)
        number += 1
        killed = killed_at(number, folder, write)
        contents = {path.name: path.read_bytes() for path in target.glob("*.csv")}
        assert set(contents.values()) <= {CONTENT, OLD.encode()}
        if not exists:
            assert not target.exists() or set(contents) == set(names)
    assert number > 5


@pytest.mark.parametrize("kind", EVERY)
def test_a_full_disk_leaves_the_old_file_and_no_other(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, name, is_complete = EVERY[kind]
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder.parent / "cache"))
    target = folder / name
    target.write_text(_old_of(kind))
    command = [*arguments, "-o", str(target), "--quiet", "--no-cache"]
    with full_disk(500):
        assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gpusight {arguments[0]}: cannot write {target}: File too large")
    assert error.count("\n") == 1
    assert target.read_text() == _old_of(kind)
    assert list(folder.iterdir()) == [target]
    assert main(command) == 0
    assert is_complete(target)


def test_a_full_disk_leaves_no_half_folder(folder: Path) -> None:
    target = folder / "tables"
    with full_disk(3000):
        for form in ("parquet", "csv", "json", "arrow"):
            with pytest.raises(GpusightError, match=r"cannot write .*File too large"):
                gs.export(CAPTURE, target, to=form)
    assert not list(folder.iterdir())


def test_a_device_without_space_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    for arguments, _, _ in (WRITERS["csv"], WRITERS["picture"]):
        form = ["--format", "svg"] if arguments[0] == "ledger" else []
        assert main([*arguments, *form, "-o", "/dev/full"]) == 2
        assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err


def test_a_small_file_system_that_is_full(folder: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount")
    try:
        target = folder / "out.html"
        target.write_text(OLD)
        with pytest.raises(GpusightError, match=r"cannot write .*No space left on device; make"):
            gs.report(CAPTURE).save(target)
        with pytest.raises(GpusightError, match="No space left on device"):
            gs.export(CAPTURE, folder / "tables")
        with pytest.raises(GpusightError, match=r"No space left on device|Input/output error"):
            gs.share(CAPTURE, folder / "copy.sqlite")
        assert list(folder.iterdir()) == [target]
        assert target.read_text() == OLD
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(AS_ROOT, reason="root may write anywhere")
@pytest.mark.parametrize("kind", WRITERS)
def test_a_read_only_folder(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, name, _ = WRITERS[kind]
    folder.chmod(0o555)
    try:
        assert main([*arguments, "-o", str(folder / name), "--no-cache"]) == 2
    finally:
        folder.chmod(0o755)
    assert "Permission denied" in capsys.readouterr().err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("kind", WRITERS)
def test_a_read_only_file_system(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, name, _ = WRITERS[kind]
    plain = os.open

    def refuses(path: str, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(folder)):
            raise OSError(30, "Read-only file system")
        return plain(path, *more, **named)

    monkeypatch.setattr(os, "open", refuses)
    assert main([*arguments, "-o", str(folder / name), "--no-cache"]) == 2
    assert f"cannot write {folder / name}: Read-only file system" in capsys.readouterr().err


@pytest.mark.parametrize("kind", EVERY)
def test_links_are_not_followed(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, name, _ = EVERY[kind]
    victim, link = tmp_path / "victim", folder / name
    victim.write_text(OLD)
    for target in (victim, tmp_path / "nowhere"):
        link.symlink_to(target)
        assert main([*arguments, "-o", str(link), "--no-cache"]) == 2
        assert f"{link} is a symbolic link" in capsys.readouterr().err
        assert link.is_symlink()
        link.unlink()
    assert victim.read_text() == OLD
    assert not (tmp_path / "nowhere").exists()


def test_a_link_that_comes_meanwhile_is_replaced_and_not_followed(folder: Path) -> None:
    victim, target = folder / "victim", folder / "out.csv"
    victim.write_text(OLD)
    with replacing(target) as stream:
        target.symlink_to(victim)
        stream.write(b"new")
    assert victim.read_text() == OLD
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()


def test_folders_links_into_folders_and_hard_links(folder: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        write_file(folder, b"x")
    (folder / "link").symlink_to(folder)
    write_file(folder / "link" / "out", b"through a folder that is a link")
    os.link(folder / "out", folder / "other")
    write_file(folder / "out", b"new")
    assert (folder / "other").read_bytes() == b"through a folder that is a link"


def test_streams_and_pipes_are_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    write_file(Path(os.devnull), b"gone")
    redirected = tmp_path / "out.txt"
    with redirected.open("wb") as stream:
        command = [sys.executable, "-m", "gpusight", "kernels", CAPTURE, "-o", "/dev/stdout"]
        subprocess.run(command, stdout=stream, check=True)
    assert "Kernels" in redirected.read_text(encoding="utf-8")


def test_modes_are_those_of_a_plain_file_or_of_the_one_replaced(folder: Path) -> None:
    target, plain = folder / "out", folder / "plain"
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            write_file(target, b"x")
            plain.write_bytes(b"x")
        finally:
            os.umask(before)
        assert target.stat().st_mode == plain.stat().st_mode
        target.unlink()
        plain.unlink()
    target.write_bytes(b"secret")
    target.chmod(0o600)
    write_file(target, b"new secret")
    assert target.stat().st_mode & 0o777 == 0o600


def test_any_failure_while_writing_leaves_what_was_there(folder: Path) -> None:
    target = folder / "out"
    target.write_text(OLD)

    def fail(error: BaseException) -> None:
        with replacing(target) as stream:
            stream.write(b"half")
            raise error

    for error in (ZeroDivisionError(), KeyboardInterrupt(), pl.exceptions.PanicException("x")):
        with pytest.raises(type(error)):
            fail(error)
    with pytest.raises(GpusightError, match="No space left on device; make room"):
        fail(pl.exceptions.PanicException("No space left on device (os error 28)"))
    assert target.read_text() == OLD
    assert list(folder.iterdir()) == [target]


def test_a_name_taken_meanwhile_is_kept(folder: Path) -> None:
    target = folder / "out"

    def write() -> None:
        with staged(target, replace=False) as part:
            part.write_bytes(b"ours")
            target.write_text(OLD)

    with pytest.raises(GpusightError, match="File exists"):
        write()
    assert target.read_text() == OLD
    assert list(folder.iterdir()) == [target]


def test_the_longest_names_work(folder: Path) -> None:
    for name in ("x" * 255, os.fsdecode(("名" * 85).encode())):
        write_file(folder / name, b"x")
        assert (folder / name).read_bytes() == b"x"


def test_files_of_a_folder_that_exists_are_replaced_and_others_stay(folder: Path) -> None:
    (folder / "a").write_text(OLD)
    (folder / "other").write_text(OLD)
    with staged_folder(folder) as part:
        (part / "a").write_text("new")
        assert (folder / "a").read_text() == OLD
    assert sorted((p.name, p.read_text()) for p in folder.iterdir()) == [
        ("a", "new"),
        ("other", OLD),
    ]


def test_a_file_system_that_cannot_flush_is_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuses)
    write_file(folder / "out", b"x")
    assert (folder / "out").read_bytes() == b"x"
