"""All stacks of a capture as one tree: a node is a frame with all the frames around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NONE, first_known
from gpusight.naming.source_files import is_library_binary, is_library_file, python_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


FRAME_SCHEMA = {
    "file": pl.String(),
    "line": pl.Int64(),
    "function": pl.String(),
    "module": pl.String(),
    "kind": pl.String(),
    "is_library": pl.Boolean(),
}
_MAX_DEPTH = 500
"""Frames of a stack that count, from the outermost; what they call belongs to the last one."""
_MAX_NAME_CHARS = 4_000
_PYTHON_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.*)", re.DOTALL)
_LIBRARY_SYMBOL = (
    r"^(?:_*cuda[A-Z_]|libcudart_static_|cu[A-Z]|nccl|cublas|cudnn|cufft|hip[A-Z]|__|_start$|_dl_"
    r"|(?:[\w: ]+ )?(?:cudart|std|thrust|cub|at|c10|torch|cutlass|cute)::)"
)
"""Functions of libraries that are often linked into executables."""
_INTERPRETER_SYMBOL = r"^_?Py[A-Za-z]*_\w+$|^_start$|^__libc_\w+$"
_ALLOCATOR_SYMBOL = (
    r"^torch::(?:unwind::|CapturedTraceback::|cuda::\(anonymous namespace\)::gather)"
    r"|^c10::cuda::CUDACachingAllocator::"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|(?<=_)\d+$", re.IGNORECASE)


@dataclass(frozen=True)
class StackTree:
    """Nodes in which a parent always comes before its children."""

    frames: pl.DataFrame
    """Distinct frames: the columns of `FRAME_SCHEMA`."""
    parent: Ints
    """The node around each node; `NONE` at the top."""
    frame: Ints
    """Row in `frames` of each node."""

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.frame)

    @cached_property
    def own_sites(self) -> Ints:
        """The innermost node of the program's own code at or around each.

        Without any, the innermost one in a source file; else the node itself.
        """
        own, in_file = (
            self.nearest(marked[self.frame])
            for marked in (
                ~self.frames["is_library"].to_numpy(),
                self.frames["file"].is_not_null().to_numpy(),
            )
        )
        return first_known([own, in_file, np.arange(len(self))])

    def nearest(self, marked: NDArray[np.bool_]) -> Ints:
        """Return the innermost marked node at or around each; `NONE` where there is none."""
        pointers = np.where(marked, np.arange(len(marked)), self.parent)
        while True:
            further = np.where(pointers >= 0, pointers[pointers], NONE)
            if np.array_equal(further, pointers):
                return pointers
            pointers = further

    def nearest_outside(self, marked: NDArray[np.bool_]) -> Ints:
        """Return the innermost marked node around each node; `NONE` at the top."""
        nearest = self.nearest(marked)
        return np.where(self.parent >= 0, nearest[self.parent], NONE)

    def sums(self, values: Ints) -> Ints:
        """Add to each node the values of all nodes below it."""
        totals = values.copy()
        # Nodes are numbered level by level from the top.
        for node in range(len(totals) - 1, -1, -1):
            if self.parent[node] >= 0:
                totals[self.parent[node]] += totals[node]
        return totals

    def path(self, node: int) -> list[int]:
        """Return a node and those around it, the outermost first."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes[::-1]


@dataclass(frozen=True)
class StackElements:
    """Frames of stacks before equal ones are one node: calls that enclose each other, or stacks."""

    frames: pl.DataFrame
    frame: Ints
    """Row in `frames` of each element."""
    parent: Ints
    """The element around each; `NONE` at the top."""
    level: Ints
    """How many are around it."""

    @classmethod
    def of_frames(cls, rows: pl.DataFrame) -> tuple[StackElements, pl.DataFrame]:
        """Take stacks, a row for each frame: `stack`, `depth` and the columns of a frame.

        Gives also the element of each `stack`: its innermost frame.
        """
        rows = rows.sort("stack", "depth", maintain_order=True).with_columns(
            (pl.len().over("stack") - 1 - pl.int_range(pl.len()).over("stack")).alias("level")
        )
        code, frames = _distinct(rows.select(list(FRAME_SCHEMA)))
        level = rows["level"].cast(pl.Int64).to_numpy()
        parent = np.where(level > 0, np.arange(1, rows.height + 1), NONE)
        innermost = rows.with_row_index("element").unique(
            "stack", keep="first", maintain_order=True
        )
        chosen = innermost.select("stack", pl.col("element").cast(pl.Int64))
        return cls(frames, code, parent, level), chosen

    @classmethod
    def of_python_calls(cls, trace: Trace) -> StackElements:
        """Take the calls that PyTorch's profiler recorded; an element is a row."""
        calls = trace.table("python_calls", ["name", "depth", "parent"])
        frames = python_frames(names_of(calls["name"]))
        codes = calls["name"].to_physical().cast(pl.Int64).to_numpy()
        parent = calls["parent"].cast(pl.Int64).fill_null(NONE).to_numpy()
        return cls(frames, codes, parent, calls["depth"].cast(pl.Int64).to_numpy())


def merge_stacks(parts: Sequence[StackElements]) -> tuple[StackTree, list[Ints]]:
    """Make one tree of all elements; gives the node of each element of each part."""
    schema_frames = [part.frames for part in parts] or [pl.DataFrame(schema=FRAME_SCHEMA)]
    codes, frames = _distinct(pl.concat(schema_frames))
    bounds = np.cumsum([0, *(part.frames.height for part in parts)])
    counts = np.cumsum([0, *(len(part.frame) for part in parts)])
    nothing = [np.empty(0, np.int64)]
    code = np.concatenate(
        [codes[b + p.frame] for b, p in zip(bounds[:-1], parts, strict=True)] or nothing
    )
    parent = np.concatenate(
        [
            np.where(p.parent >= 0, p.parent + first, NONE)
            for first, p in zip(counts[:-1], parts, strict=True)
        ]
        or nothing
    )
    level = np.concatenate([p.level for p in parts] or nothing)
    node, tree = _grow(frames, code, parent, level)
    return tree, np.split(node, counts[1:-1]) if parts else []


def _grow(frames: pl.DataFrame, code: Ints, parent: Ints, level: Ints) -> tuple[Ints, StackTree]:
    """Number the distinct paths, level by level."""
    node = np.full(len(code), NONE, np.int64)
    order = np.argsort(level, kind="stable")
    top = min(int(level.max(initial=-1)) + 1, _MAX_DEPTH)
    edges = np.searchsorted(level[order], np.arange(top + 1))
    parents, codes, count = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    width = max(frames.height, 1)
    for first, after in pairwise(edges.tolist()):
        rows = order[first:after]
        around = np.where(parent[rows] >= 0, node[parent[rows]], NONE)
        keys, inverse = np.unique((around + 1) * width + code[rows], return_inverse=True)
        node[rows] = count + inverse
        parents.append(keys // width - 1)
        codes.append(keys % width)
        count += len(keys)
    deep = np.flatnonzero(level >= _MAX_DEPTH)
    pointer = np.where(level < _MAX_DEPTH, np.arange(len(level)), parent)
    while len(deep) and (level[pointer[deep]] >= _MAX_DEPTH).any():
        pointer = pointer[pointer]
    node[deep] = node[pointer[deep]]
    return node, StackTree(frames, np.concatenate(parents), np.concatenate(codes))


def _distinct(frames: pl.DataFrame) -> tuple[Ints, pl.DataFrame]:
    """Return the number of each row's frame, and the distinct frames."""
    columns = list(FRAME_SCHEMA)
    distinct = frames.unique(maintain_order=True).with_row_index("code")
    codes = frames.join(distinct, on=columns, how="left", nulls_equal=True, maintain_order="left")[
        "code"
    ]
    return codes.cast(pl.Int64).to_numpy(), distinct.select(columns)


def python_frames(names: Sequence[str]) -> pl.DataFrame:
    """Split what PyTorch calls Python functions: `file(line): function`, or a built-in."""
    rows: list[tuple[str | None, int | None, str, str | None, str, bool]] = []
    for name in names:
        match = _PYTHON_FRAME.fullmatch(name[:_MAX_NAME_CHARS])
        if match is None:
            plain = _ADDRESS.sub("", name[:_MAX_NAME_CHARS])
            rows.append((None, None, plain, None, "python", True))
        else:
            file = match["file"]
            library = is_library_file(file)
            rows.append(
                (
                    file,
                    int(match["line"]),
                    match["function"],
                    python_module(file),
                    "python",
                    library,
                )
            )
    return pl.DataFrame(rows, schema=FRAME_SCHEMA, orient="row")


def native_frames(chains: pl.DataFrame) -> pl.DataFrame:
    """Return the frames of rows of `callchains`, as columns of a frame.

    Where a profiler adds Python functions to native stacks, their module is a source file.
    """
    modules = names_of(chains["module"])
    is_python = [name.endswith((".py", ".pyx")) for name in modules]
    library = [
        is_library_file(name) if python else is_library_binary(name)
        for name, python in zip(modules, is_python, strict=True)
    ]
    codes = chains["module"].to_physical()
    python = pl.Series(is_python, dtype=pl.Boolean).gather(codes).fill_null(value=False)
    linked = symbols_of_libraries(chains["symbol"])
    own_library = pl.Series(library, dtype=pl.Boolean).gather(codes).fill_null(value=True) | linked
    file, module = chains["file"].cast(pl.String), chains["module"].cast(pl.String)
    unresolved = chains["unresolved"].fill_null(value=False)
    symbol = chains["symbol"].cast(pl.String)
    # An address identifies no function: all of a binary's unknown functions are one.
    unknown = pl.select(pl.format("[{}]", pl.coalesce(module, pl.lit("unknown")))).to_series()
    files = names_of(chains["file"])
    of_file = pl.Series([is_library_file(name) for name in files], dtype=pl.Boolean)
    is_script = pl.Series([name.endswith((".py", ".pyx")) for name in files], dtype=pl.Boolean)
    from_file = is_script.gather(chains["file"].to_physical()).fill_null(value=False)
    return pl.DataFrame(
        {
            "file": file.zip_with(~python, module),
            "line": chains["line"].cast(pl.Int64),
            "function": unknown.zip_with(unresolved | symbol.is_null(), symbol),
            "module": module,
            "kind": pl.Series(["native", "python"]).gather((python | from_file).cast(pl.Int64)),
            "is_library": of_file.gather(chains["file"].to_physical()).zip_with(
                from_file, own_library
            ),
        },
        schema=FRAME_SCHEMA,
    )


def without_interpreter(frames: pl.DataFrame) -> pl.DataFrame:
    """Drop native frames that all allocations have: of Python itself around its functions, of the
    allocator, and of its recorder of stacks. A stack of nothing else stays."""
    function, is_python = pl.col("function"), pl.col("kind") == "python"
    dull = function.str.contains(_INTERPRETER_SYMBOL) & is_python.any().over("stack")
    dull |= function.str.contains(_ALLOCATOR_SYMBOL)
    dull &= ~is_python
    return frames.filter(~dull | dull.all().over("stack"))


def symbols_of_libraries(symbols: pl.Series) -> pl.Series:
    """Mark the functions that are a library's wherever they are linked into."""
    names = pl.Series(names_of(symbols), dtype=pl.String).str.slice(0, _MAX_NAME_CHARS)
    marked = names.str.contains(_LIBRARY_SYMBOL)
    return marked.gather(symbols.to_physical()).fill_null(value=False)


def whose_code(frames: pl.DataFrame) -> pl.DataFrame:
    """Fill in which frames are of libraries, and their modules, where the recorder did not."""
    files = frames["file"].unique().drop_nulls()
    modules = frames["module"].unique().drop_nulls()
    by_file = dict(zip(files, map(is_library_file, files), strict=True))
    by_module = dict(zip(modules, map(is_library_binary, modules), strict=True))
    names = dict(zip(files, map(python_module, files), strict=True))

    def looked_up(column: str, values: Mapping[str, object], dtype: pl.DataType) -> pl.Expr:
        return pl.col(column).replace_strict(values, default=None, return_dtype=dtype)

    of_file = looked_up("file", by_file, pl.Boolean())
    of_binary = looked_up("module", by_module, pl.Boolean())
    return frames.with_columns(
        pl.coalesce("is_library", of_file, of_binary, pl.lit(value=True)),
        pl.coalesce("module", looked_up("file", names, pl.String())),
    )
