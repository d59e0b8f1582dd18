"""Names in columns: dictionary encoding, API calls without suffixes, files without homes."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

import polars as pl

NAMELESS = "[no name]"
"""Stands where a program gave no name."""
_MAX_INDEXED_SPAN = 100_000
"""Up to this, and a few times the rows, a table indexed by id is cheaper than a hash join."""


def encode_names(texts: pl.Series) -> pl.Series:
    """Turn text into an Enum of the strings that occur, in order of appearance."""
    categories = texts.drop_nulls().unique(maintain_order=True)
    return texts.cast(pl.Enum(categories))


def encode_codes(codes: pl.Series, words: dict[int, str], other: str = "Unknown") -> pl.Series:
    """Turn small numbers into the words for them."""
    used = codes.unique().drop_nulls()
    texts = pl.Series([words.get(code, other) for code in used.to_list()], dtype=pl.String)
    return gather_names(encode_names(texts), used, codes)


def concat_names(parts: list[pl.Series]) -> pl.Series:
    """Join name columns whose Enums differ."""
    return pl.concat(_with_common_names(parts))


def first_name_of(columns: list[pl.Series]) -> pl.Series:
    """Take each row's name from the first column that has one."""
    merged = columns[-1]
    for column in reversed(columns[:-1]):
        if column.null_count() == 0:
            merged = column
        else:
            ours, others = _with_common_names([column, merged])
            merged = ours.zip_with(ours.is_not_null(), others)
    return merged


def _with_common_names(columns: list[pl.Series]) -> list[pl.Series]:
    known = [c.dtype.categories for c in columns if isinstance(c.dtype, pl.Enum)]
    common = pl.Enum(pl.concat(known).unique(maintain_order=True))
    return [column.cast(common) for column in columns]


def gather_names(names: pl.Series, used: pl.Series, ids: pl.Series) -> pl.Series:
    """Return the name of each row, from the names of the ids that occur."""
    if used.is_empty():
        return pl.Series([None], dtype=names.dtype).new_from_index(0, len(ids))
    low = used.min()
    span = int(used.max()) - int(low)  # type: ignore[arg-type]
    if span > 4 * len(ids) + _MAX_INDEXED_SPAN:
        lookup = pl.DataFrame({"id": used, "name": names})
        rows = pl.DataFrame({"id": ids}).join(lookup, on="id", how="left", maintain_order="left")
        return rows.get_column("name")
    offsets = pl.DataFrame({"offset": pl.int_range(span + 1, eager=True)}).join(
        pl.DataFrame({"offset": used - low, "row": pl.int_range(len(used), eager=True)}),
        on="offset",
        how="left",
        maintain_order="left",
    )
    return names.gather(offsets.get_column("row").gather(ids - low))


def demangle_names(name: str) -> str:
    """Demangle a name; nearly all are already, and the demangler is slow to import."""
    if not name.startswith("_Z"):
        return name
    from gpusight.naming.demangle import demangle

    return demangle(name)


_UNKNOWN = frozenset({"", "?", "??"})
_LIBRARY = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python[\d.]+)/(?=[^/])")
_HOME = re.compile(r"^(?:.*/)?(?:home|users)/[^/]+(?=/)|^/root(?=/)", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|~")
_CUT = "..."
_FILE_AND_LINE = re.compile(r"(?P<file>.+)(?P<place>\(\d+\): .*)", re.DOTALL)


def file_name(path: str) -> str:
    """Return the file name of a path of either style: folders reveal users and machines."""
    return PureWindowsPath(PurePosixPath(path).name).name


def shown_file(path: str) -> str | None:
    """Shorten a path: from its package on in a library, else its last folder and its name.

    A path that the recorder already shortened to one below a package is unchanged.

    `.../site-packages/torch/nn/modules/linear.py` is `torch/nn/modules/linear.py`, a script in a
    home directory `~/train.py`. None if the recorder did not know the file.
    """
    if path in _UNKNOWN:
        return None
    text = path.replace("\\", "/")
    inside_library, matches = _LIBRARY.subn("", text)
    if matches:
        return inside_library
    names = _HOME.sub("~", text).split("/")
    if text.startswith(_CUT):  # the front of a path that was cut may be the rest of a home
        return names[-1] or None
    kept = names[-2:] if _ABSOLUTE.match(text) else names
    return "/".join(kept).strip("/") or None


def shown_frame(entry: str) -> str:
    """Shorten the path in a frame of a printed stack, such as `/srv/src/train.py(12): step`."""
    match = _FILE_AND_LINE.fullmatch(entry)
    if match is None:
        return entry
    return f"{shown_file(match['file']) or match['file']}{match['place']}"


_SUFFIX = re.compile(r"(?:_(?:ptsz|ptds|spt)|R\d{4})?(?:_v\d{1,6})?(?:_(?:ptsz|ptds))?$")


def strip_api_version(name: str) -> str:
    """Drop version and stream suffixes of an API call, CUDA's (`cuMemAlloc_v2`) and HIP's."""
    return _SUFFIX.sub("", name, count=1) or name
