"""The cache deletes only what gpusight made, in a folder that is nobody else's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from gpusight.cli.main import main
from gpusight.errors import CacheError, UsageError
from gpusight.readers import column_cache
from gpusight.readers.cache_folder import cache_dir, cache_info, clear_cache, limit_bytes
from gpusight.readers.open import open_trace
from tests.readers.nsys.test_export_folder import raw_tables, write_folder
from tests.shared import DATA

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes and links are POSIX")

OLD_ENTRY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _keep_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_cache, "_MIN_CACHED_ROWS", 1)
    monkeypatch.delenv("GPUSIGHT_CACHE_BYTES", raising=False)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(chosen: Path) -> Path:
    return chosen / "gpusight-cache"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return copy(tmp_path / "captures" / "capture.sqlite")


def copy(target: Path, name: str = "graph_node.sqlite") -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(DATA / name, target))


def read(capture: Path) -> tuple[str, ...]:
    """Read a table through the cache, and give the warnings of the answer."""
    with open_trace(capture) as trace:
        assert trace.table("kernels", ["start_ns"]).height > 0
        return trace.warnings


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder, with its content."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def entry_of(root: Path) -> Path:
    (entry,) = (path for path in root.iterdir() if path.is_dir())
    return entry


def test_info_and_clear(chosen: Path, root: Path, capture: Path) -> None:
    read(capture)
    info = cache_info()
    assert (info.folder, info.captures, info.notes) == (chosen, 1, ())
    assert info.bytes == sum(f.stat().st_size for f in root.rglob("*.column"))
    assert clear_cache() == info
    assert tree(root).keys() == {"CACHEDIR.TAG"}
    assert (cache_info().captures, cache_info().bytes) == (0, 0)
    assert read(capture) == ()


def test_only_this_user_can_look_into_it(root: Path, capture: Path) -> None:
    mask = os.umask(0)
    try:
        read(capture)
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o077 for path in (root, *root.rglob("*"))} == {0}


def test_the_reproduction_of_the_issue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger deleted the capture that it read, and `cache clear` a folder of sources."""
    capture = copy(tmp_path / "s" / "exp" / "b.nsys-rep", "graph.nsys-rep")
    copy(tmp_path / "s" / "other" / "deep" / "c.sqlite")
    (tmp_path / "s" / "src").mkdir()
    (tmp_path / "s" / "src" / "main.py").write_text("print()")
    (tmp_path / "s" / "empty").mkdir()
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", f"{tmp_path}/s")
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "1")
    assert main(["ledger", str(capture.relative_to(tmp_path))]) == 0
    column_cache.flush_caches()
    assert "note: cache not used: the capture is inside its folder" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "its folder contains files that gpusight did not create" in error
    assert "set GPUSIGHT_CACHE_DIR to an empty folder" in error
    assert main(["cache"]) == 0
    assert (
        "not used: its folder contains files that gpusight did not create"
        in capsys.readouterr().out
    )
    assert tree(tmp_path) == before


@pytest.mark.parametrize("relative", ["s", "s/exp", ".", "s/exp/..", "link", "s/exp/b.sqlite"])
def test_folders_around_the_input_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: str
) -> None:
    capture = copy(tmp_path / "s" / "exp" / "b.sqlite")
    copy(tmp_path / "s" / "exp" / OLD_ENTRY / "c.sqlite")
    (tmp_path / "link").symlink_to(tmp_path / "s" / "exp")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", relative)
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "0")
    assert read(capture)[0].startswith("cache not used: ")
    with pytest.raises(CacheError):
        clear_cache()
    assert tree(tmp_path) == before


def test_a_cache_below_a_folder_that_is_a_capture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(raw_tables(DATA / "graph_node.sqlite"), tmp_path / "export", "parquet")
    before = tree(tmp_path)
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder / "cache"))
    assert read(folder) == ("cache not used: its folder is inside the capture",)
    assert tree(tmp_path) == before


def test_a_relative_folder_is_made_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", "kept")
    assert read(capture) == ()
    assert cache_info() == (tmp_path / "kept", 1, cache_info().bytes, ())


def test_files_that_come_later_turn_the_cache_off(chosen: Path, capture: Path) -> None:
    read(capture)
    (chosen / "thesis.tex").write_text("text")
    before = tree(chosen)
    assert read(capture) == (
        "cache not used: its folder contains files that gpusight did not create",
    )
    with pytest.raises(CacheError, match=r"thesis\.tex"):
        clear_cache()
    assert tree(chosen) == before


def test_what_file_managers_leave_does_not_matter(chosen: Path, capture: Path) -> None:
    chosen.mkdir()
    (chosen / ".DS_Store").write_text("icons")
    assert read(capture) == ()
    assert cache_info().captures == 1


def test_a_cache_of_an_earlier_version_is_left_and_named(
    chosen: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had its entries in the chosen folder itself, without a proof of who made them."""
    (chosen / OLD_ENTRY / "kernels").mkdir(parents=True)
    (chosen / OLD_ENTRY / "kernels" / "name.arrow").write_text("old")
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "0")
    assert read(capture) == ()
    assert "1 folders of an earlier version" in clear_cache().notes[0]
    assert (chosen / OLD_ENTRY / "kernels" / "name.arrow").read_text() == "old"


def test_foreign_things_inside_are_never_deleted(
    tmp_path: Path, root: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(capture)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kernels.name.column").write_text("mine")
    entry = entry_of(root)
    (entry / "thesis.tex").write_text("text")
    (entry / "kernels").mkdir()
    (entry / "kernels" / "name.arrow").write_text("mine")
    (entry / "kernels.name.column").symlink_to(precious / "kernels.name.column")
    (root / ("a" * 32)).symlink_to(precious)  # named like an entry
    (root / ("b" * 32)).mkdir()
    (root / ("b" * 32) / "kernels.name.column").write_text("no marker")
    (root / "notes").mkdir()
    (root / "notes" / "kernels.name.column").write_text("not an entry")
    before = tree(tmp_path)
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "0")
    read(copy(capture.with_name("other.sqlite"), "resnet18_infer.sqlite"))
    clear_cache()
    after = tree(tmp_path)
    deleted = {Path(path).name for path in before.keys() - after.keys()}
    assert deleted == {"kernels.start_ns.column"}
    assert "1 capture was left" in clear_cache().notes[0]
    assert all(after[path] == before[path] for path in after.keys() & before.keys())


def test_a_capture_that_is_an_export_in_the_cache_is_never_deleted(
    root: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(capture)
    export = copy(entry_of(root) / "export.sqlite")
    assert read(export) == ("cache not used: the capture is inside its folder",)
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "0")
    read(copy(capture.with_name("other.sqlite"), "resnet18_infer.sqlite"))
    clear_cache()
    assert export.exists()


def test_the_oldest_go_when_it_grows_too_large(
    root: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(capture)
    first = entry_of(root)
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "1")
    other = copy(capture.with_name("other.sqlite"), "resnet18_infer.sqlite")
    read(other)
    assert not first.exists()
    assert [f.name for f in entry_of(root).glob("*.column")] == ["kernels.start_ns.column"]
    assert capture.exists()
    assert other.exists()


@pytest.mark.parametrize("when", [0, 4_000_000_000])
def test_wrong_times_change_no_answer(
    root: Path, capture: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """A clock that jumped: entries seem to be from 1970 or from 2096."""
    read(capture)
    for path in (entry_of(root), *entry_of(root).iterdir()):
        os.utime(path, (when, when))
    assert read(capture) == ()
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", "1")
    other = copy(capture.with_name("other.sqlite"), "resnet18_infer.sqlite")
    assert read(other) == ()
    assert read(capture) == ()


@pytest.mark.parametrize("value", ["20GB", "-1", "1e9", "٣", "0x10", "9" * 30, "1 2"])
def test_a_limit_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capture: Path, value: str
) -> None:
    monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", os.fsdecode(value.encode()))
    with pytest.raises(UsageError, match="not a number of bytes"):
        open_trace(capture)


def test_a_limit_is_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, limit in ((" 100 ", 100), ("0", 0), ("", 20_000_000_000)):
        monkeypatch.setenv("GPUSIGHT_CACHE_BYTES", value)
        assert limit_bytes() == limit


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o707])
@pytest.mark.parametrize("of", ["root", "entry"])
def test_a_folder_that_others_have_access_to_is_refused(
    root: Path, capture: Path, mode: int, of: str
) -> None:
    read(capture)
    (root if of == "root" else entry_of(root)).chmod(mode)
    before = tree(root)
    assert read(capture) == (
        f"cache not used: other users have access to its folder (mode 0{mode:o})",
    )
    if of == "root":
        with pytest.raises(CacheError, match="chmod 700"):
            clear_cache()
    else:
        assert clear_cache().captures == 0
    assert tree(root) == before


@pytest.mark.parametrize("of", ["cache", "root", "entry", "marker", "file"])
def test_what_belongs_to_another_user_is_refused_also_by_root(
    chosen: Path, root: Path, capture: Path, of: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    read(capture)
    entry = entry_of(root)
    places = {"cache": chosen, "root": root, "entry": entry, "marker": entry / "gpusight-entry"}
    given = places.get(of, entry / "kernels.start_ns.column")
    os.chown(given, 65534, 65534)
    before = tree(chosen)
    (note,) = read(capture)
    expected = "its folder belongs to another user (uid 65534)"
    if of == "file":
        assert note == "cache damaged: ignored 1 file and read the capture again"
        return  # it is ours to replace: the folder is
    if of == "marker":
        expected = "its folder has files but no gpusight-entry, the marker of a gpusight cache"
    assert note == f"cache not used: {expected}"
    assert tree(chosen) == before


@pytest.mark.parametrize("of", ["root", "entry"])
def test_links_in_place_of_folders_are_not_followed(
    tmp_path: Path, root: Path, capture: Path, of: str
) -> None:
    read(capture)
    place = root if of == "root" else entry_of(root)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    assert read(capture) == ("cache not used: its folder is a link",)
    if of == "root":
        with pytest.raises(CacheError, match="is a link"):
            clear_cache()
    else:
        clear_cache()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"Signature: something else\n"])
def test_a_folder_of_our_name_without_our_marker_is_refused(
    root: Path, capture: Path, content: bytes
) -> None:
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print()")
    (root / "CACHEDIR.TAG").write_bytes(content)
    root.chmod(0o700)
    before = tree(root)
    assert "the marker of a gpusight cache" in read(capture)[0]
    with pytest.raises(CacheError, match="delete it, or move it"):
        clear_cache()
    assert tree(root) == before


def test_a_pipe_in_place_of_a_file_is_not_waited_for(root: Path, capture: Path) -> None:
    read(capture)
    file = entry_of(root) / "kernels.start_ns.column"
    file.unlink()
    os.mkfifo(file)
    assert read(capture) == ("cache damaged: ignored 1 file and read the capture again",)


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch, capture: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("GPUSIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/not/valid")
    monkeypatch.setattr(Path, "home", homeless)
    assert read(capture) == ("cache not used: Could not determine home directory.",)
    with pytest.raises(CacheError, match="set GPUSIGHT_CACHE_DIR"):
        cache_dir()
