"""Recorded inputs of an operator, and what its cost is: FLOPs and minimum bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


LARGEST_SIZE: Final = 1 << 48
LARGEST_RANK: Final = 64

_TYPES: dict[str, tuple[str, int]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("fp16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float8_e8m0fnu": ("fp8", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),
    "c10::complex<c10::Half>": ("complex", 4),
    "c10::complex<float>": ("complex", 8),
    "c10::complex<double>": ("complex", 16),
    "signed char": ("int8", 1),
    "char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "c10::qint8": ("int8", 1),
    "c10::quint8": ("int8", 1),
    "bool": ("int", 1),
    "short": ("int", 2),
    "short int": ("int", 2),
    "unsigned short": ("int", 2),
    "short unsigned int": ("int", 2),
    "int": ("int", 4),
    "unsigned int": ("int", 4),
    "c10::qint32": ("int", 4),
    "long": ("int", 8),
    "long int": ("int", 8),
    "long long": ("int", 8),
    "unsigned long": ("int", 8),
    "long unsigned int": ("int", 8),
}
"""Names of the element types in traces -> precision and bytes of an element."""
_NOT_TENSORS = frozenset((
    "Scalar", "ScalarList", "TensorList", "GenericList", "Int", "Bool", "Double", "Device", "",
))  # fmt: skip
_SCALAR_TYPES = {
    "0": 1, "1": 1, "2": 2, "3": 4, "4": 8, "5": 2, "6": 4, "7": 8, "11": 1, "15": 2,
    "23": 1, "24": 1, "25": 1, "26": 1,
}  # fmt: skip
"""Bytes of an element by torch's number of its type, which is how an `out_dtype` is recorded."""


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor among the inputs."""

    shape: tuple[int, ...]
    precision: str | None = None
    item_bytes: int | None = None
    distinct: int = 0
    """Elements in memory: along an expanded dimension (stride 0) they are the same ones."""

    @property
    def elements(self) -> int:
        """How many elements it shows."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """What it occupies; None when its type was not recorded."""
        return None if self.item_bytes is None else self.distinct * self.item_bytes


class OperatorInputs:
    """The inputs of one call, by position."""

    def __init__(
        self,
        shapes: list[Any],
        types: list[Any],
        concrete: list[Any],
        strides: list[Any],
    ) -> None:
        self._shapes = shapes
        self._types = types
        self._concrete = concrete
        self._strides = strides

    @classmethod
    def parse(
        cls, shapes: str | None, types: str | None, concrete: str | None, strides: str | None
    ) -> OperatorInputs | None:
        """Read the JSON texts of a call; None when there are no sizes in them."""
        sizes = _list(shapes)
        if not sizes:
            return None
        return cls(sizes, _list(types), _list(concrete), _list(strides))

    def __len__(self) -> int:
        """Count the arguments."""
        return len(self._shapes)

    def tensor(self, index: int) -> TensorInput | None:
        """Give the tensor at a position; None when there is none, or no sizes that make sense."""
        shape = _at(self._shapes, index)
        kind = _at(self._types, index)
        if not isinstance(shape, list) or not _is_shape(shape):
            return None
        if not isinstance(kind, str | None) or kind in _NOT_TENSORS or (kind is None and not shape):
            return None
        precision, item_bytes = _TYPES.get(kind or "", (None, None))
        sizes = tuple(shape)
        return TensorInput(
            sizes, precision, item_bytes, _distinct(sizes, _at(self._strides, index))
        )

    def matrices(self, *indices: int, rank: int | None = None) -> tuple[TensorInput, ...] | None:
        """Give these tensors, or None when one is missing or has another rank."""
        found = [self.tensor(index) for index in indices]
        tensors = tuple(t for t in found if t is not None and rank in {None, len(t.shape)})
        return tensors if len(tensors) == len(indices) else None

    def text(self, index: int) -> str:
        """Give the value of an argument as recorded; empty when it was not."""
        value = _at(self._concrete, index)
        return value.strip() if isinstance(value, str) else ""

    def whole(self, index: int) -> int | None:
        """Give a whole number among the arguments."""
        return _whole(self.text(index))

    def flag(self, index: int) -> bool | None:
        """Give a truth value among the arguments."""
        return {"True": True, "False": False}.get(self.text(index))

    def wholes(self, index: int) -> tuple[int, ...] | None:
        """Give a list of whole numbers, such as a stride."""
        parts = self._parts(index)
        numbers = [_whole(part) for part in parts or ()]
        known = tuple(number for number in numbers if number is not None)
        return known if parts and len(known) == len(numbers) else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Give a list of truth values, such as an output mask."""
        parts = self._parts(index)
        if not parts or not set(parts) <= {"True", "False"}:
            return None
        return tuple(part == "True" for part in parts)

    def flag_positions(self) -> list[int]:
        """List the positions of the truth values, in order."""
        return [index for index in range(len(self)) if self.flag(index) is not None]

    def wholes_after(self, index: int) -> list[int]:
        """List the whole numbers among the arguments past a position, in order."""
        found = (self.whole(later) for later in range(index + 1, len(self)))
        return [number for number in found if number is not None]

    def out_item_bytes(self, index: int) -> int | None:
        """Give the bytes of an element of the type that an argument asks for."""
        return _SCALAR_TYPES.get(self.text(index))

    def _parts(self, index: int) -> list[str] | None:
        text = self.text(index)
        if not (text.startswith("[") and text.endswith("]")):
            return None
        return [part.strip() for part in text[1:-1].split(",")] if text[1:-1].strip() else []


def _list(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _whole(text: str) -> int | None:
    # A number of more digits than these is no size, and would take long to read.
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= LARGEST_RANK and all(
        type(size) is int and 0 <= size <= LARGEST_SIZE for size in shape
    )


def _distinct(shape: tuple[int, ...], strides: Any) -> int:
    if not isinstance(strides, list) or len(strides) != len(shape) or 0 in shape:
        return math.prod(shape)
    return math.prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0)


FAMILIES = ("matmul", "convolution", "attention", "embedding")
"""What is counted; everything else is left to be shown as not counted."""
MAX_PLAUSIBLE_COUNT = 1 << 53
"""Sizes that give more than this in one call come from a damaged capture."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The arithmetic and the minimum traffic of one call of an operator."""

    family: str
    """One of `FAMILIES`."""
    flops: int
    """Floating-point operations (integer ones for integer types); a multiply-add is two."""
    read_bytes: int | None
    """Bytes of the inputs, each read once; None when the types were not recorded."""
    written_bytes: int | None
    """Bytes of the outputs, each written once."""
    precision: str | None
    "Number format of the tensors, as `gpusight.hardware.gpu_lookup` names them; None when unknown."
    sizes: str
    """The sizes that decide the cost, in few characters."""
    assumed: str = ""
    """What had to be taken for granted, as one sentence."""


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """An operator whose cost is not known, and why."""

    reason: str


MISFIT = UnknownCost("the recorded sizes do not fit the operator")


def total_bytes(tensors: Iterable[TensorInput | None]) -> int | None:
    """Add up what tensors occupy; absent ones take nothing, one of unknown type makes it None."""
    sizes = [tensor.bytes for tensor in tensors if tensor is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def scaled(elements: int, item_bytes: int | None) -> int | None:
    """Give the bytes of so many elements; None when the type is not known."""
    return None if item_bytes is None else elements * item_bytes


def by(*sizes: int) -> str:
    """Write sizes as people do: `2048x768`."""
    return "x".join(map(str, sizes))


def plausible(cost: OperatorCost) -> bool:
    """Tell whether the numbers can come from one call on a GPU."""
    numbers = (cost.flops, cost.read_bytes or 0, cost.written_bytes or 0)
    return all(0 <= number <= MAX_PLAUSIBLE_COUNT for number in numbers)


def product(sizes: Iterable[int]) -> int:
    """Multiply sizes; 1 for none."""
    return math.prod(sizes)
