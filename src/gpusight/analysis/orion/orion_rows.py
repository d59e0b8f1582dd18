"""From launches to rows of Orion's kernel-info file, and the file as text."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    DRAM_SHARE,
    REGISTERS,
    SM_SHARE,
    STATIC_SHARED,
)
from gpusight.analysis.orion.orion_launches import INTENSITY, NEITHER, PROFILE, SM_NEEDED
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MODEL_TYPES = ("vision", "bert", "transformer")
"""Models that the scheduler's own tools tell apart."""


class OrionRole(enum.Enum):
    """What a launch becomes in the file."""

    MEMORY = "memory"
    """A copy or a fill, which the scheduler does not count."""
    BATCH_NORM = "batch norm"
    CONVOLUTION = "convolution"
    HELPER = "helper"
    """Prepares a convolution, or finishes one."""
    SPLIT_K = "split-k"
    """Adds up what a matrix product left in parts."""
    GEMM = "gemm"
    OTHER = "other"


_LONGEST = 6_000
"""Letters of a name that are looked at."""
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
# Products of spectra, in convolutions by FFT.
_COMPLEX_GEMM = re.compile(r"_gcgemm_", re.IGNORECASE)
_SPLIT_K = re.compile(r"splitk_?reduce|split_k_(?:kernel|reduce)|reducesplitk", re.IGNORECASE)
# On Volta cuDNN runs convolutions of 1 x 1 as these; linear layers use other layouts.
_VISION_GEMM = re.compile(r"volta_sgemm_128x64_n[nt]")


@lru_cache(maxsize=16_384)
def role_of(name: str, model_type: str) -> OrionRole:
    """Tell what a launch of this name is, in a model of this type."""
    text = name[:_LONGEST]
    function = _function(text)
    if _MEMORY.match(text):
        return OrionRole.MEMORY
    if _BATCH_NORM.search(function):
        return OrionRole.BATCH_NORM
    if _OF_PYTORCH.search(function):
        return OrionRole.OTHER
    if _OF_CUDNN.search(text) and any(p.search(text) for p in (_BEFORE, _AFTER, _SUM)):
        return OrionRole.HELPER
    if _is_convolution(text, model_type):
        return OrionRole.CONVOLUTION
    if _SPLIT_K.search(text):
        return OrionRole.SPLIT_K
    return OrionRole.GEMM if classify(name).category == "matmul" else OrionRole.OTHER


def prepares(name: str) -> bool:
    """Tell whether a helper belongs to the convolution after it."""
    return bool(_BEFORE.search(name[:_LONGEST]))


def finishes(name: str) -> bool:
    """Tell whether a helper belongs to the convolution before it."""
    return not prepares(name) and bool(_AFTER.search(name[:_LONGEST]) or adds_up(name))


def adds_up(name: str) -> bool:
    """Tell whether a helper is the second half of the convolution kernel before it."""
    return bool(_SUM.search(name[:_LONGEST]))


def is_complex_gemm(name: str) -> bool:
    """Tell whether it is one of the several products of a convolution by FFT."""
    return bool(_COMPLEX_GEMM.search(name[:_LONGEST]))


def row_name(name: str) -> str:
    """Give a name as it may stand in the file: without template arguments, commas or line ends."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    whole = printable.replace(_UNNAMED, _ANONYMOUS).strip()
    cut = whole.split("<", 1)[0].rstrip()
    if "," in cut:
        cut = _function(cut)
    return (cut or whole).replace(",", ";") or "unnamed"


def _is_convolution(text: str, model_type: str) -> bool:
    if _OTHER_LAYERS.search(text):
        return False
    in_vision = model_type == "vision" and _VISION_GEMM.search(text)
    return bool(_CONVOLUTION.search(text) or _COMPLEX_GEMM.search(text) or in_vision)


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
    alone: list[int] = field(default_factory=list)
    """Helpers without a convolution, which keep rows of their own."""
    late: list[int] = field(default_factory=list)
    """Helpers counted to the next convolution though they ran right after one."""


class _Walk:
    """Goes through the launches in order."""

    def __init__(self, names: list[str], model_type: str, helpers: str) -> None:
        self._names = names
        self._roles = [role_of(name, model_type) for name in names]
        self._model_type = model_type
        self._helpers = helpers
        self._pending: list[int] = []
        self._last: int | None = None
        """The launch before, copies and fills apart."""
        self.found = OrionRows()

    def run(self) -> OrionRows:
        for at, role in enumerate(self._roles):
            if role is OrionRole.MEMORY:
                self.found.left_out[at] = "copy or fill"
                continue
            self._take(at, role)
            self._last = at
        self._leftovers()
        self.found.rows.sort(key=lambda row: row.main)
        return self.found

    def _take(self, at: int, role: OrionRole) -> None:
        if role is OrionRole.HELPER:
            self._helper(at)
        elif role is OrionRole.SPLIT_K:
            self._split_k(at)
        elif role is OrionRole.CONVOLUTION or self._is_convolution_by_gemm(role):
            self._convolution(at)
        else:
            self._add(at, role, [at])

    def _add(self, at: int, role: OrionRole, launches: list[int]) -> None:
        name = _NAMES.get(role) or row_name(self._names[at])
        self.found.rows.append(OrionRow(name, role, at, launches))

    def _helper(self, at: int) -> None:
        row = self._row_before()
        after_one = (
            row is not None and row.role is OrionRole.CONVOLUTION and finishes(self._names[at])
        )
        if row is not None and after_one and (self._helpers == OWN or adds_up(self._names[at])):
            row.launches.append(at)
            return
        if after_one:
            self.found.late.append(at)
        self._pending.append(at)

    def _convolution(self, at: int) -> None:
        row = self._row_before()
        if row is not None and all(is_complex_gemm(self._names[n]) for n in (at, row.main)):
            row.launches.append(at)  # the next product of the same convolution by FFT
            return
        self._add(at, OrionRole.CONVOLUTION, [*self._pending, at])
        self._pending = []

    def _is_convolution_by_gemm(self, role: OrionRole) -> bool:
        """Tell whether cuDNN launched this product: what it prepares comes right before."""
        if role is not OrionRole.GEMM or self._model_type != "vision" or not self._pending:
            return False
        before = self._pending[-1]
        return before == self._last and prepares(self._names[before])

    def _split_k(self, at: int) -> None:
        row = self._row_before()
        if self._model_type == "transformer" and row is not None and row.role is OrionRole.GEMM:
            row.launches.append(at)
        else:
            self.found.left_out[at] = "split-K reduce"

    def _leftovers(self) -> None:
        """Give helpers that no convolution follows to the one they ran right after, or a row."""
        owner = {at: row for row in self.found.rows for at in row.launches}
        for at in self._pending:
            row = owner.get(at - 1)
            if row is not None and row.role is OrionRole.CONVOLUTION and finishes(self._names[at]):
                row.launches.append(at)
                owner[at] = row
            else:
                self._add(at, OrionRole.HELPER, [at])
                self.found.alone.append(at)
        self.found.late = [at for at in self.found.late if at not in self._pending]

    def _row_before(self) -> OrionRow | None:
        """Give the row that the launch right before went to."""
        if not self.found.rows or self._last is None:
            return None
        row = self.found.rows[-1]
        return row if row.launches[-1] == self._last else None


def group(names: list[str], model_type: str, helpers: str = NEXT) -> OrionRows:
    """Sort launches, in order, into the rows of the file."""
    return _Walk(names, model_type, helpers).run()


def row_values(row: OrionRow, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the values of a row: the most SMs, all of the time, the class that they agree on."""
    own = [launches[at] for at in row.launches]
    main = launches[row.main]
    return {
        "name": row.name,
        PROFILE: merged_profile([one[PROFILE] for one in own], main[PROFILE]),
        "memory_footprint": 0,
        SM_NEEDED: max(one[SM_NEEDED] for one in own),
        "duration_ns": sum(one["duration_ns"] for one in own),
        "block": main["block"],
        "grid": main["grid"],
        "launches": len(own),
        "first_launch": min(one["launch"] for one in own),
    }


def merged_profile(profiles: Iterable[int], main: int) -> int:
    """Give the class of several launches: the one they agree on, else that of the main one."""
    told = set(profiles) - {NEITHER}
    if not told:
        return NEITHER
    return told.pop() if len(told) == 1 else main


ROW_TYPES = {
    "name": pl.String,
    PROFILE: pl.Int64,
    "memory_footprint": pl.Int64,
    SM_NEEDED: pl.Int64,
    "duration_ns": pl.Float64,
    "block": pl.Int64,
    "grid": pl.Int64,
    "launches": pl.Int64,
    "first_launch": pl.Int64,
}


HEADER = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration")
SHAPE_HEADER = ("Block", "Grid")
"""What files with seven columns have besides."""
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
"""The tables on the way, by the names that the original scripts give them."""


def kernel_info(rows: pl.DataFrame, columns: int) -> str:
    """Write the file that the scheduler reads; it knows no quotes, so names have no commas."""
    header = (*HEADER, *SHAPE_HEADER)[:columns]
    keys = _ROW_KEYS[:columns]
    lines = [",".join(_cell(row[key]) for key in keys) for row in rows.iter_rows(named=True)]
    return "\n".join([",".join(header), *lines]) + "\n"


def table_texts(launches: pl.DataFrame) -> dict[str, str]:
    """Write the tables on the way as CSV, by the name of their file."""
    return {
        name: launches.select(e.alias(c) for c, e in columns.items()).write_csv()
        for name, columns in TABLES.items()
    }


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}".rstrip("0").rstrip(".")
