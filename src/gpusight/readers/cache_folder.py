"""The folder of the cache: where it is, whether it is safe to use, its locks, its size limit."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import CacheError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


try:
    import fcntl
except ImportError:  # Windows, which deletes no file that is open
    fcntl = None  # type: ignore[assignment]

_DEFAULT_LIMIT_BYTES = 20_000_000_000
_ROOT = "gpusight-cache"
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# gpusight keeps columns of captures here. To empty it: gpusight cache clear\n"
)
_MARKER = "gpusight-entry"
_ENTRY = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"part-[0-9a-f]{16}(\.sqlite(-journal|-wal|-shm)?)?")
_FILE = re.compile(
    r"[a-z0-9_]+\.[a-z0-9_]+\.column|[A-Za-z0-9_-]+\.derived|outline\.record"
    r"|export\.(sqlite|record)|" + _PART.pattern
)
_LITTER = re.compile(r"\.DS_Store|Thumbs\.db|desktop\.ini|\.nfs[0-9a-f]+")
"""What file managers and network disks leave in any folder."""
_HOLDS_FOLDERS_OPEN = os.open in os.supports_dir_fd and os.listdir in os.supports_fd


class CacheInfo(NamedTuple):
    """What the cache holds."""

    folder: Path
    captures: int
    bytes: int
    notes: tuple[str, ...] = ()


def cache_dir() -> Path:
    """Where the cache is: `GPUSIGHT_CACHE_DIR`, else the platform's own cache folder."""
    try:
        configured = os.environ.get("GPUSIGHT_CACHE_DIR")
        if configured:
            return Path(configured).expanduser().absolute()
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME", ""))
            base = base if base.is_absolute() else Path.home() / ".cache"
    except (RuntimeError, OSError) as error:  # no home folder, or no current one
        raise CacheError(
            "no cache folder", why=str(error), hint="set GPUSIGHT_CACHE_DIR"
        ) from error
    return base / "gpusight"


def limit_bytes() -> int:
    """How large the cache may grow: `GPUSIGHT_CACHE_BYTES`, else 20 GB."""
    configured = os.environ.get("GPUSIGHT_CACHE_BYTES", "").strip()
    if not configured:
        return _DEFAULT_LIMIT_BYTES
    if not re.fullmatch(r"[0-9]{1,18}", configured):
        raise UsageError(
            f"GPUSIGHT_CACHE_BYTES is {configured[:40]!r}",
            why="not a number of bytes",
            hint="use an integer, such as 20000000000",
        )
    return int(configured)


_inputs: set[Path] = set()


def protect_capture(capture: Path) -> None:
    """Protect a capture inside a cache entry: this process never deletes that entry."""
    _inputs.add(Path(os.path.realpath(capture)))


def check_cache_folder(capture: Path | None = None) -> Path:
    """Return the folder of the cache, links resolved; raise CacheError if it must not be used."""
    folder = cache_dir()
    resolved = Path(os.path.realpath(folder))
    if capture is not None:
        capture = Path(os.path.realpath(capture))
        if resolved in (capture, *capture.parents):
            raise _refused(folder, "the capture is inside its folder")
        if capture in resolved.parents:
            raise _refused(folder, "its folder is inside the capture")
    if not os.path.lexists(folder):
        return resolved
    if not resolved.exists():
        raise _refused(folder, "its folder is a link to one that does not exist")
    if not resolved.is_dir():
        raise _refused(folder, "it is not a folder")
    try:
        owner = resolved.stat().st_uid
        foreign = [entry.name for entry in os.scandir(resolved) if not _is_expected(entry)]
    except OSError as error:
        raise _refused(folder, error.strerror or str(error)) from error
    if hasattr(os, "geteuid") and owner not in (os.geteuid(), 0):
        raise _refused(folder, f"its folder belongs to another user (uid {owner})")
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        # The reason goes into answers, which people pass on: names stay out of it.
        raise _refused(
            folder,
            "its folder contains files that gpusight did not create",
            f"set GPUSIGHT_CACHE_DIR to an empty folder (this one contains {min(foreign)!r}{more})",
        )
    return resolved


def _is_expected(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry may lie next to our folder: older caches, litter."""
    if _ENTRY.fullmatch(entry.name):
        return entry.is_dir(follow_symlinks=False)
    return entry.name == _ROOT or bool(_LITTER.fullmatch(entry.name))


def _refused(
    folder: Path, why: str, hint: str = "set GPUSIGHT_CACHE_DIR to an empty folder"
) -> CacheError:
    return CacheError(f"the cache in {folder} is not used", why=why, hint=hint)


class CacheFolder:
    """A folder held open: files are looked up in it, whatever becomes of its path."""

    def __init__(self, path: Path, inside: CacheFolder | None = None) -> None:
        self.path = path
        self._fd: int | None = None
        if _HOLDS_FOLDERS_OPEN:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            flags |= 0 if inside is None else os.O_NOFOLLOW
            where = path if inside is None else path.name
            self._fd = os.open(where, flags, dir_fd=None if inside is None else inside._fd)
        elif not stat.S_ISDIR(path.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def __enter__(self) -> Self:
        """Keep it open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def names(self) -> list[str]:
        """List what is in it."""
        return os.listdir(self.path if self._fd is None else self._fd)

    def status(self, name: str | None = None) -> os.stat_result:
        """Look at it, or at something in it, without following a link."""
        if name is None:
            return self.path.lstat() if self._fd is None else os.fstat(self._fd)
        return os.stat(self._at(name), dir_fd=self._fd, follow_symlinks=False)

    def is_file(self, name: str) -> bool:
        """Return whether there is a regular file of this name."""
        try:
            return stat.S_ISREG(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def make(self, name: str) -> bool:
        """Make a folder in it, for this user alone; False if something of this name is there."""
        try:
            os.mkdir(self._at(name), 0o700, dir_fd=self._fd)
        except FileExistsError:
            return False
        return True

    def close_to_others(self) -> None:
        """Remove access rights that a default ACL added when it was made."""
        if self._fd is not None:
            os.chmod(self._fd, 0o700)

    def open(self, name: str, flags: int) -> int:
        """Open a regular file in it, of this user; never a link or a pipe."""
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(self._at(name), flags, 0o600, dir_fd=self._fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or _is_foreign(status):
            os.close(fd)
            raise PermissionError(errno.EPERM, "not a file of this user", name)
        return fd

    def new_part(self, suffix: str = "") -> str:
        """Choose a name for a file that is being written."""
        return f"part-{secrets.token_hex(8)}{suffix}"

    def replace(self, part: str, name: str) -> None:
        """Rename a finished file to its final name."""
        os.replace(self._at(part), self._at(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def delete(self, name: str) -> None:
        """Delete a regular file if it is there."""
        # Deleted by another process, in use (Windows), or a read-only disk: it is left.
        with contextlib.suppress(OSError):
            if self.is_file(name):
                os.unlink(self._at(name), dir_fd=self._fd)

    def delete_folder(self, name: str) -> bool:
        """Delete an empty folder."""
        try:
            os.rmdir(self._at(name), dir_fd=self._fd)
        except OSError:
            return False
        return True

    def _at(self, name: str) -> str:
        return name if self._fd is not None else str(self.path / name)


def _is_foreign(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and status.st_uid != os.geteuid()


@contextlib.contextmanager
def open_root(*, make: bool = False) -> Iterator[CacheFolder]:
    """Open the folder of the cache; raises FileNotFoundError if there is none, or CacheError."""
    path = Path(os.path.realpath(cache_dir()))
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with CacheFolder(path) as parent, _marked(parent, _ROOT, _TAG, _TAG_TEXT, make=make) as root:
        yield root


@contextlib.contextmanager
def open_entry(name: str, *, make: bool = False) -> Iterator[CacheFolder]:
    """Open the folder of a capture, like `open_root`."""
    with (
        open_root(make=make) as root,
        _marked(root, name, _MARKER, _marker_text(name), make=make) as entry,
    ):
        yield entry


def _marker_text(name: str) -> bytes:
    return f"gpusight cache entry {name}\n".encode()


@contextlib.contextmanager
def _marked(
    parent: CacheFolder, name: str, marker: str, text: bytes, *, make: bool
) -> Iterator[CacheFolder]:
    """Open or make a folder that carries gpusight's marker; refuse any other."""
    made = make and parent.make(name)
    path = parent.path / name
    if stat.S_ISLNK(parent.status(name).st_mode):
        raise _refused(path, "its folder is a link", "delete the link")
    with CacheFolder(path, parent) as folder:
        if made:
            folder.close_to_others()
        _check_owner(folder)
        if not _has_marker(folder, marker, text):
            unfinished = all(_PART.fullmatch(n) for n in folder.names())
            # Another process may have made the marker, and more, since we looked for it.
            if not unfinished and not _has_marker(folder, marker, text):
                why = f"its folder has files but no {marker}, the marker of a gpusight cache"
                raise _refused(path, why, "delete it, or move it if you need its files")
            if unfinished and not make:
                raise FileNotFoundError(errno.ENOENT, "not made yet", str(path))
            if unfinished:
                _write_marker(folder, marker, text)
        yield folder


def _check_owner(folder: CacheFolder) -> None:
    status = folder.status()
    if not hasattr(os, "geteuid"):
        return
    if _is_foreign(status):
        raise _refused(folder.path, f"its folder belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        why = f"other users have access to its folder (mode {mode:04o})"
        raise _refused(folder.path, why, f"chmod 700 {folder.path}")


def _has_marker(folder: CacheFolder, marker: str, text: bytes) -> bool:
    try:
        fd = folder.open(marker, os.O_RDONLY)
    except OSError:  # missing, a link, a folder, somebody else's: then it proves nothing
        return False
    with os.fdopen(fd, "rb") as file:
        return file.read(len(text) + 1) == text


def _write_marker(folder: CacheFolder, marker: str, text: bytes) -> None:
    part = folder.new_part()
    with os.fdopen(folder.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a folder whose marker a power cut took is lost to the cache
    folder.replace(part, marker)


@contextlib.contextmanager
def lock_entry(entry: CacheFolder, *, alone: bool) -> Iterator[bool]:
    """Keep others from deleting an entry that is written to; yield whether that worked.

    The system releases the lock with the process, however that ends: no clock, no process ids.
    """
    try:
        fd = entry.open(_MARKER, os.O_RDONLY)
    except FileNotFoundError:
        yield alone  # an entry that nobody finished making, or that was deleted just now
        return
    try:
        taken = True
        if fcntl is not None:
            try:
                # A deleter skips a locked entry; a writer waits, since deleting takes a moment.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            except BlockingIOError:
                taken = False
            except OSError:
                # A disk without locks: a file lost while it is written is read again later.
                taken = True
        yield taken and (alone or os.fstat(fd).st_nlink > 0)
    finally:
        os.close(fd)


def cache_info() -> CacheInfo:
    """Count what the cache holds."""
    notes: list[str] = []
    captures, total = 0, 0
    try:
        check_cache_folder()
        with open_root() as root:
            for name in _entries(root):
                captures += 1
                total += _size(root, name)
    except FileNotFoundError:
        pass  # nothing was kept yet
    except CacheError as error:
        notes.append(f"not used: {error.why}; {error.hint}")
    except OSError as error:
        notes.append(f"cannot be read: {error.strerror or error}")
    old = 0
    with contextlib.suppress(OSError):
        folders = [entry for entry in os.scandir(cache_dir()) if _ENTRY.fullmatch(entry.name)]
        old = sum(entry.is_dir(follow_symlinks=False) for entry in folders)
    if old:
        notes.append(
            f"{old} folders of an earlier version next to it are not used: "
            "delete them by hand (names of 32 hexadecimal digits)"
        )
    return CacheInfo(cache_dir(), captures, total, tuple(notes))


def clear_cache() -> CacheInfo:
    """Delete everything in the cache; return what was deleted, and notes on what was not."""
    folder = cache_dir()
    check_cache_folder()
    captures, total, kept = 0, 0, 0
    try:
        with open_root() as root:
            for name in root.names():
                if _PART.fullmatch(name):
                    root.delete(name)
            for name in _entries(root):
                before = _size(root, name)
                deleted = _delete(root, name)
                captures += deleted
                kept += not deleted
                total += before - (0 if deleted else _size(root, name))
    except FileNotFoundError:
        pass  # nothing was kept yet
    except OSError as error:
        raise _refused(folder, error.strerror or str(error), "check its access rights") from error
    notes = cache_info().notes
    if kept:
        why = "in use, not deletable, or with files that gpusight did not create"
        count = "1 capture was" if kept == 1 else f"{kept} captures were"
        notes += (f"{count} left: {why}",)
    return CacheInfo(folder, captures, total, notes)


def trim_cache(keep: str, limit: int) -> None:
    """Delete leftovers of killed processes, and captures over the limit, oldest first."""
    with open_root() as root:
        changed_ns: dict[str, int] = {}
        for name in _entries(root):
            with contextlib.suppress(OSError):  # deleted meanwhile
                changed_ns[name] = root.status(name).st_mtime_ns
        total = 0
        for name in sorted(changed_ns, key=lambda entry: (entry != keep, -changed_ns[entry])):
            _sweep(root, name)
            total += _size(root, name)
            if total > limit and name != keep:
                _delete(root, name)


def _entries(root: CacheFolder) -> list[str]:
    """List the entries that carry gpusight's marker."""
    return [n for n in root.names() if _ENTRY.fullmatch(n) and _is_ours(root, n)]


def _is_ours(root: CacheFolder, name: str) -> bool:
    try:
        with _marked(root, name, _MARKER, _marker_text(name), make=False):
            return True
    except FileNotFoundError:
        return True  # made by a process that was killed before it wrote the marker, or gone
    except (CacheError, OSError):
        return False


def _delete(root: CacheFolder, name: str) -> bool:
    """Delete the files of an entry that gpusight wrote, then the entry; False if it stays."""
    try:
        with CacheFolder(root.path / name, root) as entry, lock_entry(entry, alone=True) as alone:
            if not alone or _holds_input(entry.path):
                return False
            for file in entry.names():
                if _FILE.fullmatch(file):
                    entry.delete(file)
            if entry.names() == [_MARKER]:
                entry.delete(_MARKER)
    except FileNotFoundError:
        return True  # another process was faster
    except OSError:
        return False
    return root.delete_folder(name)


def _sweep(root: CacheFolder, name: str) -> None:
    """Delete unfinished files, unless a process is writing to the entry."""
    try:
        with CacheFolder(root.path / name, root) as entry:
            parts = [n for n in entry.names() if _PART.fullmatch(n)]
            if parts and not _holds_input(entry.path):
                with lock_entry(entry, alone=True) as alone:
                    for part in parts if alone else ():
                        entry.delete(part)
    except OSError:
        return  # vanished, or cannot be listed: it only takes space


def _holds_input(folder: Path) -> bool:
    return any(folder in capture.parents for capture in _inputs)


def _size(root: CacheFolder, name: str) -> int:
    size = 0
    with contextlib.suppress(OSError), CacheFolder(root.path / name, root) as entry:
        for file in filter(_FILE.fullmatch, entry.names()):
            with contextlib.suppress(OSError):  # deleted meanwhile
                status = entry.status(file)
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size
