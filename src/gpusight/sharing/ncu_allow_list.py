"""What of a report of Nsight Compute is copied: the known fields, by their numbers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from gpusight.sharing.leak_report import Category

if TYPE_CHECKING:
    from typing import TypeAlias


class FieldKind(enum.Enum):
    """How a field is written."""

    NUMBERS = "numbers"
    """A number, as it stands."""
    KERNEL = "kernel names"
    RANGE = "names of NVTX ranges"
    MACHINE = "description of hardware and system"
    """Of which what its makers call things is kept."""
    VERSION = "versions of tools and drivers"
    METRIC = "names of metrics"
    LABEL = "texts of sections"
    """Labels of the profiler's own; any other is hashed."""
    COUNTER = "counter"
    """A metric with its values."""
    ATTRIBUTE = "attribute"
    """An attribute of a GPU: a metric that is spelled out."""
    SECTION = "section"


class RemovedField(NamedTuple):
    """A field that we know and leave behind."""

    category: Category
    where: str


Spec: TypeAlias = "dict[int, FieldKind | RemovedField | Spec]"

_N = FieldKind.NUMBERS
_T = FieldKind.LABEL


def _numbers(*fields: int) -> Spec:
    return dict.fromkeys(fields, _N)


_SIZE = _numbers(1, 2, 3)
_COMMENT = RemovedField(Category.PROGRAM_TEXTS, "comments")
_RULES = RemovedField(Category.PROGRAM_OUTPUT, "results of the profiler's rules")
_CREATED = RemovedField(Category.CAPTURE_TIME, "CreationTime")
_STACK = RemovedField(Category.CODE, "CPU call stacks")
_HANDLES = RemovedField(Category.PROGRAM_TEXTS, "names of contexts and streams")
_REGISTERED = RemovedField(Category.PROGRAM_TEXTS, "registered NVTX strings")
_ATTACHED = RemovedField(Category.VALUES, "attributes of NVTX ranges")

_CODE = RemovedField(Category.CODE, "machine code and symbols")
SOURCE: Spec = {
    **_numbers(1, 5, 6, 7),
    2: RemovedField(Category.FILE_CONTENTS, "source code"),
    3: _CODE,
    4: _CODE,
    8: RemovedField(Category.FILE_CONTENTS, "source files and their paths"),
    9: _CODE,
}
"""Fields of a binary."""

_NVTX: Spec = {
    1: {1: _N, 2: FieldKind.RANGE, 3: _REGISTERED, 4: _REGISTERED},
    2: {1: _N, 2: {1: _N, 3: {1: FieldKind.RANGE, 2: _ATTACHED, 3: _N}}},
    3: {1: _N, 3: {1: _N, 2: FieldKind.RANGE, 3: _ATTACHED, 4: _N, 5: _N}},
    4: _N,
}
_RANGES: Spec = {
    **_numbers(1, 2, 6, 9, 11),
    3: _COMMENT,
    4: FieldKind.COUNTER,
    5: _CREATED,
    7: FieldKind.SECTION,
    8: _COMMENT,
    10: _NVTX,
}
"""What ranges, command lists and graphs have in common."""
RESULTS: dict[str, Spec] = {
    "kernel": {
        **_numbers(1, 2, 3, 4, 8, 16, 20, 22, 23, 29, 30),
        **dict.fromkeys((5, 6, 7), FieldKind.KERNEL),
        **dict.fromkeys((9, 10, 11), _SIZE),
        12: _COMMENT,
        13: FieldKind.COUNTER,
        14: _CREATED,
        15: SOURCE,
        17: FieldKind.SECTION,
        18: _COMMENT,
        19: _RULES,
        21: _NVTX,
        24: {1: _N, 2: RemovedField(Category.VALUES, "settings of a series")},
        25: _numbers(1, 2),
        26: _HANDLES,
        27: _HANDLES,
        28: _STACK,
    },
    "range": {
        **_RANGES, **_numbers(15, 16), 12: _numbers(1, 2), 13: _HANDLES, 14: _STACK,
    },
    "command list": {
        **_RANGES, **_numbers(12, 17, 19), 13: _numbers(1, 2), 14: _HANDLES, 15: _HANDLES,
        16: _STACK, 18: FieldKind.KERNEL, 20: {1: _SIZE, 2: _SIZE}, 21: _RULES,
    },
    "graph": {
        **_RANGES, **_numbers(12, 17, 18), 13: _numbers(1, 2), 14: _HANDLES, 15: _HANDLES,
        16: _STACK, 22: _RULES,
    },
}  # fmt: skip
"""Results of each kind."""

_HOST = RemovedField(Category.HOST_NAMES, "host names")
_BUILD = RemovedField(Category.HARDWARE_IDS, "host system and builds")
_NETWORK = RemovedField(Category.NETWORK, "addresses")
_COMMAND = RemovedField(Category.COMMAND_LINES, "command lines and settings")
_PATHS = RemovedField(Category.FILE_PATHS, "program and working folder")
SESSION: Spec = {
    1: _N,
    2: _CREATED,
    3: {**dict.fromkeys((1, 2, 3, 4), _BUILD), 5: _HOST, 6: _BUILD, 7: _NETWORK},
    4: {
        **dict.fromkeys((1, 3, 4), FieldKind.MACHINE),
        2: _BUILD,
        5: _HOST,
        6: _N,
        7: _NETWORK,
    },
    5: RemovedField(Category.HARDWARE_IDS, "properties of devices"),
    6: {1: _N, 2: FieldKind.MACHINE, 3: FieldKind.ATTRIBUTE},
    7: _COMMENT,
    8: {1: FieldKind.MACHINE, 2: FieldKind.VERSION},
    9: {
        1: _PATHS,
        2: _PATHS,
        3: _COMMAND,
        4: RemovedField(Category.ENVIRONMENT, "environment"),
    },
    10: _COMMAND,
    11: _COMMAND,
}
"""Fields of the session."""

VALUE: Spec = {1: FieldKind.LABEL, **_numbers(2, 3, 4, 5)}
COUNTER: Spec = {1: _N, 2: VALUE, 3: {1: VALUE, 2: VALUE}, 4: _N}
"""A counter that holds texts; nearly all hold none."""

# How the profiler's window shows counters ---------------------------------------------------------

_FILTER: Spec = {1: _N, 2: _N, 3: _numbers(1, 2), 4: _numbers(1, 2)}
_DISPLAY: Spec = {1: _numbers(1, 2), 2: _numbers(1, 2)}
_METRIC: Spec = {
    **_numbers(3, 4, 10), 1: FieldKind.METRIC, 2: _T, 5: _T, 6: _FILTER,
    7: {1: FieldKind.METRIC, 2: _T, 3: _FILTER}, 8: _DISPLAY, 9: _T, 11: _T,
}  # fmt: skip
_AXIS: Spec = {1: _T, 2: _numbers(1, 2), 3: _N, 4: _N, 5: _N}
_ROOF_AXIS: Spec = {1: _T, **_numbers(2, 3, 4)}
_ROOF_VALUE: Spec = {1: _N, 2: _METRIC, 3: {1: _METRIC, 2: _METRIC}}
_ROOF_OPTIONS: Spec = {1: _T, 2: _numbers(1, 2), 3: _N, 4: _N}
_ROOFS: Spec = {1: _ROOF_VALUE, 2: _ROOF_VALUE, 3: _ROOF_OPTIONS}
_ROW: Spec = {1: _T, 3: _N, 4: _METRIC}
_ITEM: Spec = {
    1: {1: _T, **_numbers(2, 3, 4, 6, 7), 5: _METRIC},
    2: {1: _T, **_numbers(2, 6, 7, 8), 3: {1: _T}, 4: _AXIS, 5: _METRIC},
    3: {1: _T, 2: {1: _T, 2: _N}, 3: _AXIS, 4: _METRIC},
    4: {1: _T, 2: _AXIS, 3: _AXIS, 4: _METRIC, 5: {1: _METRIC}},
    6: {
        1: _T, 2: _ROOF_AXIS, 3: _ROOF_AXIS, 4: _ROOFS, 5: _ROOFS,
        6: {1: _ROOF_VALUE, 2: _ROOF_OPTIONS}, 8: {1: _T},
    },
    7: {1: _T, 2: _N, 3: _METRIC, 4: _N},
    8: {1: _T, 2: {1: {1: FieldKind.METRIC, 2: _T}}, 3: {1: _METRIC}, 4: _N, 5: _N},
    **{number: {1: _T, **_numbers(*range(2, 14))} for number in range(101, 113)},
    113: {1: _T, 2: {1: _T, 3: _N, 4: _ROW}, 3: _METRIC},
    150: {1: _T, 2: _T, 3: _METRIC},
    200: _FILTER,
}  # fmt: skip
_ITEM[5] = {1: dict(_ITEM)}
SECTION: Spec = {
    1: _T, 2: _T, 3: _N, 4: {1: _N, 2: _METRIC}, 5: {1: _ITEM, 2: _T, 3: _N},
    6: {1: _METRIC, 2: _N}, 7: RemovedField(Category.PROGRAM_TEXTS, "descriptions of sections"),
    8: {1: _T}, 9: _T, 10: {1: {1: FieldKind.METRIC, 2: FieldKind.METRIC, 3: _FILTER}}, 11: _FILTER,
    12: {1: _T, 2: _T, 3: _DISPLAY}, 13: {1: _METRIC, 2: _N},
}  # fmt: skip
"""A section with the fields of its definition; descriptions are left behind."""
