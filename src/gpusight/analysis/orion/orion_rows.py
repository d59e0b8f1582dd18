"""Rows of Orion's kernel-info file: grouping launches into rows, writing and checking a file."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.counters.launch_quantities import (
    DRAM_SHARE,
    REGISTERS,
    SM_SHARE,
    STATIC_SHARED,
)
from gpusight.analysis.orion.orion_launches import (
    CLASS_NAMES,
    INTENSITY,
    NEITHER,
    PROFILE,
    SM_NEEDED,
)
from gpusight.errors import NotACaptureError
from gpusight.naming.kernel_names import classify
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MODEL_TYPES = ("vision", "bert", "transformer")
"""Models that the scheduler's own tools distinguish."""


class OrionRole(enum.Enum):
    """What a launch becomes in the file."""

    MEMORY = "memory"
    """A memcpy or memset, which the scheduler does not count."""
    BATCH_NORM = "batch norm"
    CONVOLUTION = "convolution"
    HELPER = "helper"
    """Prepares a convolution, or finishes one."""
    SPLIT_K = "split-k"
    """Adds up the partial results of a GEMM."""
    GEMM = "gemm"
    OTHER = "other"


_MAX_NAME_CHARS = 6_000
"""Characters of a name that patterns are applied to."""
_UNNAMED = "<unnamed>"
_ANONYMOUS = "(anonymous namespace)"
_PARAMETERS = re.compile(r"[(<](?!unnamed>)")

_MEMORY = re.compile(r"\[?(?:CUDA )?mem(?:cpy|set)\b", re.IGNORECASE)
_OF_PYTORCH = re.compile(r"(?:^|[ :])at::")
_BATCH_NORM = re.compile(r"(?:^|[^a-z])bn_(?:fw|bw)|batch_?norm", re.IGNORECASE)
_OF_CUDNN = re.compile(
    r"cudnn|engines_precompiled|cask_plugin|winograd|fft2d|DSE::|\bcnn::|im2col4d"
    r"|(?:nchw|nhwc|padding|precompute_indices|offsets)\w{0,12}kernel|kernel_helper_stage"
    r"|flip_filter|compute_gemm_pointers",
    re.IGNORECASE,
)
# What comes before a convolution kernel: layouts, padding, offsets, transforms, workspaces.
_BEFORE = re.compile(
    r"nchw_?to_?(?:folded)?nhwc|ncdhw_?to_?ndhwc|nhwctofoldednhwc|addpadding|im2col"
    r"|compute\w{0,20}offsets|kern_precompute|init_device_workspace|scalepackedtensor"
    r"|generatewinogradtiles|winograd\w{0,12}(?:data|filter|delta|diff)"
    r"|fft2d_r2c|fft_pad|flip_filter|compute_gemm_pointers|kernel_helper",
    re.IGNORECASE,
)
# What comes after one: layouts back, inverse transforms.
_AFTER = re.compile(
    r"nhwc_?to_?nchw|ndhwc_?to_?ncdhw|foldednhwctonhwc|winograd\w{0,12}output|fft2d_c2r|fft_clip",
    re.IGNORECASE,
)
# The second half of one: it adds up what the first left in parts.
_SUM = re.compile(
    r"reduce_wgrad|cudnn\w{0,10}::kernel<.{0,60}reducesplitk|split_k_kernel\w{0,8}cudnn",
    re.IGNORECASE,
)
_CONVOLUTION = re.compile(
    r"xmma_\w{0,12}(?:fprop|dgrad|wgrad)|\d(?:fprop|dgrad|wgrad)_|implicitgemmconvolution"
    r"|(?:maxwell|pascal|volta|turing|ampere|hopper|sm\d{2,3})_\w{0,24}?cudnn_"
    r"|(?:implicit|explicit|precomputed)_convolve|convolve_common_engine"
    r"|[dw]grad\w{0,6}_engine|[dw]grad_alg|(?:[dw]grad|conv)2d_(?:grouped|alg|c1)"
    r"|cudnn\w{0,10}::kernel\d?<|xmma_cudnn::gemm::kernel|cudnn\S{0,60}(?:conv|fprop|[dw]grad)"
    r"|implicit_gemm::\w{0,12}(?:fprop|[dw]grad)",
    re.IGNORECASE,
)
# cuDNN's attention and recurrent layers are made of the same parts.
_OTHER_LAYERS = re.compile(r"sdpa|fmha|flash|attention|lstm|gru_|rnn", re.IGNORECASE)
# GEMMs of spectra, in convolutions by FFT.
_COMPLEX_GEMM = re.compile(r"_gcgemm_", re.IGNORECASE)
_SPLIT_K = re.compile(r"splitk_?reduce|split_k_(?:kernel|reduce)|reducesplitk", re.IGNORECASE)
# On Volta cuDNN runs convolutions of 1 x 1 as these; linear layers use other layouts.
_VISION_GEMM = re.compile(r"volta_sgemm_128x64_n[nt]")


@lru_cache(maxsize=16_384)
def role_of(name: str, model_type: str) -> OrionRole:
    """Return the role of a launch of this name, in a model of this type."""
    text = name[:_MAX_NAME_CHARS]
    function = _function(text)
    if _MEMORY.match(text):
        return OrionRole.MEMORY
    if _BATCH_NORM.search(function):
        return OrionRole.BATCH_NORM
    if _OF_PYTORCH.search(function):
        return OrionRole.OTHER
    if _OF_CUDNN.search(text) and any(p.search(text) for p in (_BEFORE, _AFTER, _SUM)):
        return OrionRole.HELPER
    convolutions = [_CONVOLUTION, _COMPLEX_GEMM]
    if model_type == "vision":
        convolutions.append(_VISION_GEMM)
    if not _OTHER_LAYERS.search(text) and any(p.search(text) for p in convolutions):
        return OrionRole.CONVOLUTION
    if _SPLIT_K.search(text):
        return OrionRole.SPLIT_K
    return OrionRole.GEMM if classify(name).category == "matmul" else OrionRole.OTHER


def is_prologue(name: str) -> bool:
    """Return whether a helper belongs to the convolution after it."""
    return bool(_BEFORE.search(name[:_MAX_NAME_CHARS]))


def is_epilogue(name: str) -> bool:
    """Return whether a helper belongs to the convolution before it."""
    return not is_prologue(name) and bool(
        _AFTER.search(name[:_MAX_NAME_CHARS]) or is_reduction(name)
    )


def is_reduction(name: str) -> bool:
    """Return whether a helper is the second half of the convolution kernel before it."""
    return bool(_SUM.search(name[:_MAX_NAME_CHARS]))


def is_complex_gemm(name: str) -> bool:
    """Return whether it is one of the several GEMMs of a convolution by FFT."""
    return bool(_COMPLEX_GEMM.search(name[:_MAX_NAME_CHARS]))


def row_name(name: str) -> str:
    """Return a name as the file can hold it: no template arguments, commas or line ends."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    full = printable.replace(_UNNAMED, _ANONYMOUS).strip()
    cut = full.split("<", 1)[0].rstrip()
    if "," in cut:
        cut = _function(cut)
    return (cut or full).replace(",", ";") or "unnamed"


def _function(name: str) -> str:
    """Cut parameters and template arguments off."""
    text = name.replace(_ANONYMOUS, _UNNAMED)
    return _PARAMETERS.split(text, maxsplit=1)[0].replace(_UNNAMED, _ANONYMOUS).rstrip()


NEXT, OWN = "next", "own"
"""Whose row a helper that ran after its convolution is counted to: the next one's, or its own."""
_NAMES = {OrionRole.CONVOLUTION: "Conv", OrionRole.BATCH_NORM: "BatchNorm"}


@dataclass(slots=True)
class OrionRow:
    """A row of the file, and the launches that it is made of."""

    name: str
    role: OrionRole
    main: int
    """Position of the launch that names it, and whose class counts where they disagree."""
    launches: list[int]


@dataclass(slots=True)
class OrionRows:
    """What the launches became, by their positions in the table of launches."""

    rows: list[OrionRow] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    """Launches that are in no row, and why."""
    without_convolution: list[int] = field(default_factory=list)
    """Helpers without a convolution, which keep rows of their own."""
    counted_to_next: list[int] = field(default_factory=list)
    """Helpers counted to the next convolution though they ran right after one."""


class _Grouping:
    """Goes through the launches in order and assigns each to a row."""

    def __init__(self, names: list[str], model_type: str, helpers: str) -> None:
        self._names = names
        self._roles = [role_of(name, model_type) for name in names]
        self._model_type = model_type
        self._helpers = helpers
        self._pending: list[int] = []
        self._last: int | None = None
        """The launch before, memcpys and memsets apart."""
        self.result = OrionRows()

    def run(self) -> OrionRows:
        for at, role in enumerate(self._roles):
            if role is OrionRole.MEMORY:
                self.result.left_out[at] = "memcpy or memset"
                continue
            if role is OrionRole.HELPER:
                self._helper(at)
            elif role is OrionRole.SPLIT_K:
                row = self._row_before()
                if self._model_type == "transformer" and row and row.role is OrionRole.GEMM:
                    row.launches.append(at)
                else:
                    self.result.left_out[at] = "split-K reduce"
            elif role is OrionRole.CONVOLUTION or self._is_convolution_by_gemm(role):
                self._convolution(at)
            else:
                self._add(at, role, [at])
            self._last = at
        self._assign_leftovers()
        self.result.rows.sort(key=lambda row: row.main)
        return self.result

    def _add(self, at: int, role: OrionRole, launches: list[int]) -> None:
        name = _NAMES.get(role) or row_name(self._names[at])
        self.result.rows.append(OrionRow(name, role, at, launches))

    def _helper(self, at: int) -> None:
        row, name = self._row_before(), self._names[at]
        if row is not None and row.role is OrionRole.CONVOLUTION and is_epilogue(name):
            if self._helpers == OWN or is_reduction(name):
                row.launches.append(at)
                return
            self.result.counted_to_next.append(at)
        self._pending.append(at)

    def _convolution(self, at: int) -> None:
        row = self._row_before()
        if row is not None and all(is_complex_gemm(self._names[n]) for n in (at, row.main)):
            row.launches.append(at)  # the next GEMM of the same convolution by FFT
            return
        self._add(at, OrionRole.CONVOLUTION, [*self._pending, at])
        self._pending = []

    def _is_convolution_by_gemm(self, role: OrionRole) -> bool:
        """Return whether cuDNN launched this GEMM: a kernel that prepares it comes right before."""
        if role is not OrionRole.GEMM or self._model_type != "vision" or not self._pending:
            return False
        before = self._pending[-1]
        return before == self._last and is_prologue(self._names[before])

    def _assign_leftovers(self) -> None:
        """Add helpers that no convolution follows to the one they ran right after, or as rows."""
        owner = {at: row for row in self.result.rows for at in row.launches}
        for at in self._pending:
            row = owner.get(at - 1)
            if (
                row is not None
                and row.role is OrionRole.CONVOLUTION
                and is_epilogue(self._names[at])
            ):
                row.launches.append(at)
                owner[at] = row
            else:
                self._add(at, OrionRole.HELPER, [at])
                self.result.without_convolution.append(at)
        self.result.counted_to_next = [
            at for at in self.result.counted_to_next if at not in self._pending
        ]

    def _row_before(self) -> OrionRow | None:
        """Return the row of the launch right before."""
        if not self.result.rows or self._last is None:
            return None
        row = self.result.rows[-1]
        return row if row.launches[-1] == self._last else None


def group(names: list[str], model_type: str, helpers: str = NEXT) -> OrionRows:
    """Group launches, in order, into the rows of the file."""
    return _Grouping(names, model_type, helpers).run()


def row_values(row: OrionRow, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the values of a row: most SMs, total time, the class that its launches agree on."""
    own = [launches[at] for at in row.launches]
    main = launches[row.main]
    return {
        "name": row.name,
        PROFILE: merged_profile([launch[PROFILE] for launch in own], main[PROFILE]),
        "memory_footprint": 0,
        SM_NEEDED: max(launch[SM_NEEDED] for launch in own),
        "duration_ns": sum(launch["duration_ns"] for launch in own),
        "block": main["block"],
        "grid": main["grid"],
        "launches": len(own),
        "first_launch": min(launch["launch"] for launch in own),
    }


def merged_profile(profiles: Iterable[int], main: int) -> int:
    """Return the class that several launches agree on, else that of the main one."""
    known = set(profiles) - {NEITHER}
    if not known:
        return NEITHER
    return known.pop() if len(known) == 1 else main


HEADER = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration")
SHAPE_HEADER = ("Block", "Grid")
"""Further columns of files with seven."""
_ROW_KEYS = ("name", PROFILE, "memory_footprint", SM_NEEDED, "duration_ns", "block", "grid")

_THREADS = pl.col("block") * pl.col("grid")
_PROCESSED: Mapping[str, pl.Expr] = {
    "Kernel_Name": pl.col("name"),
    "DRAM_Throughput(%)": pl.col(DRAM_SHARE.key) * 100,
    "Duration(ns)": pl.col("duration_ns"),
    "Compute(SM)(%)": pl.col(SM_SHARE.key) * 100,
    "Block": pl.col("block"),
    "Grid": pl.col("grid"),
    "Registers_Per_Thread": pl.col(REGISTERS.key),
    "Static_shmem_per_block": pl.col(STATIC_SHARED.key),
    "Number_of_threads": _THREADS,
    "Number_of_registers": _THREADS * pl.col(REGISTERS.key),
}
_SMS = {**_PROCESSED, "SM_needed": pl.col(SM_NEEDED)}
_ROOFLINE = {**_SMS, "AI(flops/bytes)": pl.col(INTENSITY), "Roofline_prof": pl.col(PROFILE)}
TABLES: Mapping[str, Mapping[str, pl.Expr]] = {
    "output_ncu_processed.csv": _PROCESSED,
    "output_ncu_sms.csv": _SMS,
    "output_ncu_sms_roofline.csv": _ROOFLINE,
}
"""The intermediate tables, by the file names of the original scripts."""


def kernel_info(rows: pl.DataFrame, columns: int) -> str:
    """Format the file that the scheduler reads; it has no quotes, so names have no commas."""
    header = (*HEADER, *SHAPE_HEADER)[:columns]
    keys = _ROW_KEYS[:columns]
    lines = [",".join(_cell(row[key]) for key in keys) for row in rows.iter_rows(named=True)]
    return "\n".join([",".join(header), *lines]) + "\n"


def table_texts(launches: pl.DataFrame) -> dict[str, str]:
    """Format the intermediate tables as CSV, by file name."""
    return {
        name: launches.select(e.alias(c) for c, e in columns.items()).write_csv()
        for name, columns in TABLES.items()
    }


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}".rstrip("0").rstrip(".")


# Checking a file ----------------------------------------------------------------------------------

BROKEN_FIELDS = (
    Field("line", "Line", Fmt.ID, "Line of the file, from 1 for the header"),
    Field("problem", "Problem", Fmt.TEXT, "Why the scheduler cannot read the row"),
    Field("text", "Row", Fmt.NAME, "The row, shortened"),
)
_FULL_HEADER = (*HEADER, *SHAPE_HEADER)
_INTEGER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(?:\d{1,300}\.?\d{0,300}|\.\d{1,300})(?:[eE][+-]?\d{1,4})?\s*", re.ASCII
)
_INT_MAX = 2**31 - 1
_FLOAT_MAX = 3.4028235e38
_MAX_ROW_CHARS, _ROW_END_CHARS, _MAX_CELL_CHARS = 160, 57, 40
"""Characters of a broken row that are shown, at its end, and of a cell."""
_GAP = " … "


def check(text: str, source: str, num_kernels: int | None = None) -> Composite:
    """Check the text of a kernel-info file as the scheduler reads it; problems become rows."""
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    columns, has_header = _columns(lines, source)
    rows: list[tuple[int, float]] = []
    broken: list[tuple[int, str, str]] = []
    if not has_header:
        problem = "no header: the reader skips the first line, and this kernel with it"
        broken.append((1, problem, _shorten(lines[0])))
    for number, line in enumerate(lines[1:], start=2):
        row = _parse_row(line, columns)
        if isinstance(row, str):
            broken.append((number, row, _shorten(line)))
        else:
            rows.append(row)
    count = len(lines) - has_header
    notes: tuple[str, ...] = ()
    if num_kernels is not None and count != num_kernels:
        has = "one row" if count == 1 else f"{count:,} rows"
        counts = f"the job's num_kernels is {num_kernels:,} and the file has {has}"
        notes = (f"{counts}: the scheduler would wait for ever, or start over too early",)
    sound = not broken and not notes
    frame = pl.DataFrame(broken, schema=schema_of(BROKEN_FIELDS), orient="row")
    return Composite(
        "orion",
        f"{source}: {'sound' if sound else 'the scheduler cannot use it'}",
        _facts(columns, rows, len(broken), count, num_kernels),
        (TableResult("broken", "Broken rows", BROKEN_FIELDS, frame),) if broken else (),
        meta={"action": "check", "sound": sound},
        notes=notes,
    )


def problems(result: Composite) -> int:
    """Count the problems of a file that was checked."""
    facts = {fact.key: fact.value for fact in result.facts}
    return int(facts["broken"]) + (facts.get("count_agrees") is False)


def _columns(lines: list[str], source: str) -> tuple[int, bool]:
    """Return how many columns the file has, and whether it has a header."""
    header = [word.strip().lower() for word in lines[0].split(",")]
    known = [name.lower() for name in _FULL_HEADER]
    if header in (known, known[: len(HEADER)]):
        return len(header), True
    for columns in (len(_FULL_HEADER), len(HEADER)):
        if not isinstance(_parse_row(lines[0], columns), str):
            return columns, False
    raise NotACaptureError(
        f"{source} is not a kernel-info file",
        why=f"its first line is not {','.join(HEADER)}",
        hint="make one: gpusight orion build --ncu FILE --model-type vision -o FILE",
    )


def _parse_row(line: str, columns: int) -> tuple[int, float] | str:
    """Return profile and duration of a row, or what is wrong with it."""
    if not line.strip():
        return "empty line"
    cells = line.split(",")
    extra = len(cells) - columns
    if extra > 0 and _problem([cells[0], *cells[extra + 1 :]]) is None:
        return f"{extra:,} {plural('comma', extra)} in the name"
    if extra:
        return f"{len(cells):,} {plural('field', len(cells))}, not {columns}"
    return _problem(cells) or (int(cells[1]), float(cells[4]))


def _problem(cells: list[str]) -> str | None:
    """Return why the scheduler cannot read or use a row; None for a sound one."""
    for name, cell in zip(_FULL_HEADER[1:], cells[1:], strict=False):
        if name == "Duration":
            readable = _FLOAT.fullmatch(cell) and abs(float(cell)) <= _FLOAT_MAX
        else:
            readable = _INTEGER.fullmatch(cell) and abs(int(cell)) <= _INT_MAX
        if not readable:
            kind = "number" if name == "Duration" else "whole number"
            return f"{name} is {cell.strip()[:_MAX_CELL_CHARS]!r}, not a {kind}"
    if not cells[0].strip():
        return "no name"
    if int(cells[1]) not in CLASS_NAMES:
        return f"Profile is {int(cells[1])}, not 1, 0 or -1"
    if int(cells[3]) < 1:
        return f"SM_usage is {int(cells[3])}: a kernel needs at least one SM"
    return f"Duration is {float(cells[4]):g}" if float(cells[4]) < 0 else None


def _shorten(line: str) -> str:
    if len(line) <= _MAX_ROW_CHARS:
        return line
    start = line[: _MAX_ROW_CHARS - _ROW_END_CHARS - len(_GAP)]
    return f"{start}{_GAP}{line[-_ROW_END_CHARS:]}"


def _facts(
    columns: int, rows: list[tuple[int, float]], broken: int, count: int, num_kernels: int | None
) -> tuple[Fact, ...]:
    time_ns = sum(duration_ns for _, duration_ns in rows)
    profiles = [profile for profile, _ in rows]
    agrees = count == num_kernels
    expected = (
        Fact("num_kernels", "num_kernels", num_kernels, Fmt.COUNT, "What the job requires"),
        Fact("count_agrees", "Count agrees", agrees, Fmt.FLAG, "Whether the file has as many"),
    )
    return (
        Fact("rows", "Rows", count, Fmt.COUNT, "Kernels in the file, broken rows included"),
        *(expected if num_kernels is not None else ()),
        Fact("broken", "Broken", broken, Fmt.COUNT, "Rows that the scheduler cannot read"),
        Fact("columns", "Columns", columns, Fmt.COUNT, "Five, or seven with block and grid"),
        Fact("total_ns", "Time", time_ns, Fmt.TIME, "Sum of the durations that can be read"),
        *(
            Fact(
                f"{name}_rows",
                f"Class {profile}: {name}",
                profiles.count(profile),
                Fmt.COUNT,
                f"Rows with the profile {profile}",
            )
            for profile, name in CLASS_NAMES.items()
        ),
    )
