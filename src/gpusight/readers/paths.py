"""Files as they are shown: told apart, without home folders and what lies above."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

_UNKNOWN = frozenset({"", "?", "??"})
_LIBRARY = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python[\d.]+)/(?=[^/])")
_HOME = re.compile(r"^(?:.*/)?(?:home|users)/[^/]+(?=/)|^/root(?=/)", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|~")
_CUT = "..."
_PLACE = re.compile(r"(?P<file>.+)(?P<place>\(\d+\): .*)", re.DOTALL)


def file_name(path: str) -> str:
    """Keep the file name of a path of either style: folders give away users and machines."""
    return PureWindowsPath(PurePosixPath(path).name).name


def shown_file(path: str) -> str | None:
    """Shorten a path: from its package on in a library, else its last folder and its name.

    A path that the recorder had shortened already, to one below a package, stays as it is.

    `.../site-packages/torch/nn/modules/linear.py` is `torch/nn/modules/linear.py`, a script in a
    home directory `~/train.py`. None where the recorder did not know the file.
    """
    if path in _UNKNOWN:
        return None
    text = path.replace("\\", "/")
    inside, found = _LIBRARY.subn("", text)
    if found:
        return inside
    names = _HOME.sub("~", text).split("/")
    if text.startswith(_CUT):  # the front of a path that was cut may be the rest of a home
        return names[-1] or None
    kept = names[-2:] if _ABSOLUTE.match(text) else names
    return "/".join(kept).strip("/") or None


def shown_frame(entry: str) -> str:
    """Shorten the path in a frame of a printed stack, such as `/srv/src/train.py(12): step`."""
    match = _PLACE.fullmatch(entry)
    if match is None:
        return entry
    return f"{shown_file(match['file']) or match['file']}{match['place']}"
