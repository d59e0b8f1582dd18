"""Recorded inputs of an operator, and what its cost is: FLOPs and minimum bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    Formula: TypeAlias = Callable[["OperatorInputs"], "OperatorCost | UnknownCost"]
    """Computes the cost of a call from its inputs."""


_MAX_SIZE = 1 << 48
_MAX_RANK = 64

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
"""Element type in traces -> precision and bytes of an element."""
_NOT_TENSORS = frozenset((
    "Scalar", "ScalarList", "TensorList", "GenericList", "Int", "Bool", "Double", "Device", "",
))  # fmt: skip
_SCALAR_TYPES = {
    "0": 1, "1": 1, "2": 2, "3": 4, "4": 8, "5": 2, "6": 4, "7": 8, "11": 1, "15": 2,
    "23": 1, "24": 1, "25": 1, "26": 1,
}  # fmt: skip
"""Bytes of an element by torch's number of the type, which is how an `out_dtype` is recorded."""


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor among the inputs."""

    shape: tuple[int, ...]
    precision: str | None = None
    item_bytes: int | None = None
    distinct: int = 0
    """Elements in memory: an expanded dimension (stride 0) repeats the same ones."""

    @property
    def elements(self) -> int:
        """Number of elements of its shape."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Bytes in memory; None when its type was not recorded."""
        return None if self.item_bytes is None else self.distinct * self.item_bytes


@dataclass(frozen=True, slots=True)
class OperatorInputs:
    """The inputs of one call, by position."""

    shapes: list[Any]
    types: list[Any]
    concrete: list[Any]
    strides: list[Any]

    @classmethod
    def parse(
        cls, shapes: str | None, types: str | None, concrete: str | None, strides: str | None
    ) -> OperatorInputs | None:
        """Parse the JSON texts of a call; None when no sizes were recorded."""
        inputs = cls(*map(_list, (shapes, types, concrete, strides)))
        return inputs if inputs.shapes else None

    def __len__(self) -> int:
        """Count the arguments."""
        return len(self.shapes)

    def tensor(self, index: int) -> TensorInput | None:
        """Return the tensor at a position; None when there is none, or no plausible sizes."""
        shape = _at(self.shapes, index)
        kind = _at(self.types, index)
        if not isinstance(shape, list) or len(shape) > _MAX_RANK:
            return None
        if not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in shape):
            return None
        if not isinstance(kind, str | None) or kind in _NOT_TENSORS or (kind is None and not shape):
            return None
        distinct = math.prod(shape)
        strides = _at(self.strides, index)
        if isinstance(strides, list) and len(strides) == len(shape) and distinct:
            sizes = zip(shape, strides, strict=True)
            distinct = math.prod(size for size, stride in sizes if stride != 0)
        precision, item_bytes = _TYPES.get(kind or "", (None, None))
        return TensorInput(tuple(shape), precision, item_bytes, distinct)

    def tensors(self, *indices: int, rank: int | None = None) -> tuple[TensorInput, ...] | None:
        """Return these tensors, or None when one is missing or has another rank."""
        inputs = [self.tensor(index) for index in indices]
        tensors = tuple(t for t in inputs if t is not None and rank in {None, len(t.shape)})
        return tensors if len(tensors) == len(indices) else None

    def text(self, index: int) -> str:
        """Return the value of an argument as recorded; empty when it was not."""
        value = _at(self.concrete, index)
        return value.strip() if isinstance(value, str) else ""

    def integer(self, index: int) -> int | None:
        """Return an integer argument."""
        return _integer(self.text(index))

    def flag(self, index: int) -> bool | None:
        """Return a boolean argument."""
        return {"True": True, "False": False}.get(self.text(index))

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Return a list of integers, such as a stride."""
        numbers = [_integer(item) for item in self._items(index)]
        known = tuple(number for number in numbers if number is not None)
        return known if known and len(known) == len(numbers) else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Return a list of booleans, such as an output mask."""
        items = self._items(index)
        if not items or not set(items) <= {"True", "False"}:
            return None
        return tuple(item == "True" for item in items)

    def flag_positions(self) -> list[int]:
        """List the positions of the boolean arguments, in order."""
        return [index for index in range(len(self)) if self.flag(index) is not None]

    def integers_after(self, index: int) -> list[int]:
        """List the integer arguments past a position, in order."""
        later = (self.integer(position) for position in range(index + 1, len(self)))
        return [number for number in later if number is not None]

    def out_item_bytes(self, index: int) -> int | None:
        """Return the bytes of an element of the type that an argument names."""
        return _SCALAR_TYPES.get(self.text(index))

    def _items(self, index: int) -> list[str]:
        """Split an argument that is a list; empty where it is none."""
        text = self.text(index)
        if not (text.startswith("[") and text.endswith("]") and text[1:-1].strip()):
            return []
        return [item.strip() for item in text[1:-1].split(",")]


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


def _integer(text: str) -> int | None:
    # A number of more digits is no size, and would take long to parse.
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


FAMILIES = ("matmul", "convolution", "attention", "embedding")
"""What is counted; everything else is shown as not counted."""
_MAX_PLAUSIBLE_COUNT = 1 << 53
"""More FLOPs or bytes in one call come from a damaged capture."""


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
    """What had to be assumed, as one sentence."""

    @property
    def min_bytes(self) -> int | None:
        """Bytes read and written; None when the types were not recorded."""
        if self.read_bytes is None or self.written_bytes is None:
            return None
        return self.read_bytes + self.written_bytes

    @property
    def plausible(self) -> bool:
        """Whether the numbers can come from one call on a GPU."""
        numbers = (self.flops, self.read_bytes or 0, self.written_bytes or 0)
        return all(0 <= number <= _MAX_PLAUSIBLE_COUNT for number in numbers)


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """An operator whose cost is not known, and why."""

    reason: str


MISFIT = UnknownCost("the recorded sizes do not fit the operator")


def total_bytes(tensors: Iterable[TensorInput | None]) -> int | None:
    """Sum the bytes of tensors, ignoring absent ones; None when a type is not known."""
    sizes = [tensor.bytes for tensor in tensors if tensor is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def scaled(elements: int, item_bytes: int | None) -> int | None:
    """Return the bytes of so many elements; None when the type is not known."""
    return None if item_bytes is None else elements * item_bytes


def by(*sizes: int) -> str:
    """Write sizes as `2048x768`."""
    return "x".join(map(str, sizes))
