"""What a capture would give away, and what became of it in a copy; values are never part of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

TAKES = "share takes nsys captures, traces of torch.profiler and .ncu-rep reports"


class Category(enum.Enum):
    """What a piece of a capture tells about people and machines."""

    ENVIRONMENT = "environment"
    COMMAND_LINES = "command lines"
    HOST_NAMES = "host names"
    USER_NAMES = "user names"
    PROCESSES = "process list"
    PROCESS_NUMBERS = "process and thread numbers"
    FILE_CONTENTS = "file contents"
    FILE_PATHS = "file paths"
    NETWORK = "network"
    """Addresses and names of network devices."""
    HARDWARE_IDS = "hardware identifiers"
    """Serial numbers, UUIDs, bus addresses."""
    CREDENTIALS = "passwords and keys"
    CAPTURE_TIME = "time of the capture"
    PROGRAM_OUTPUT = "program output"
    """What the program or the profiler printed: logs, diagnostics."""
    CODE = "code"
    """Machine code, sources and symbols of the program, and the stacks of its operators."""
    PROGRAM_TEXTS = "range names and other texts"
    """Names of ranges and marks, and what programs attach to them."""
    KERNEL_NAMES = "kernel names"
    PYTHON_FUNCTIONS = "names of Python functions"
    """With the name of the file and the line; also those of modules (`nn.Module: Linear_3`)."""
    THREAD_NAMES = "thread names"
    VALUES = "values"
    """Arguments of operators and payloads: data that the program computed with."""
    CALLS = "names of CUDA and OS calls"
    MACHINE = "models and versions"
    """What makers call their hardware and system software."""
    PROFILER = "words of the profiler"
    """Names of counters, labels of sections, what the profiler itself was busy with."""
    UNKNOWN = "unknown"
    """Parts of the file that we do not know, and so do not copy."""


class Fate(enum.Enum):
    """What becomes of it in a copy."""

    REMOVED = "removed"
    HASHED = "hashed"
    SHORTENED = "shortened"
    """Only what says nothing is kept: the last part of a path, a vocabulary word."""
    RENUMBERED = "renumbered"
    """Counted from 1, in the order of the old numbers."""
    KEPT = "kept"
    """Not changed; `hash_names` or nothing would change it."""


@dataclass(frozen=True, slots=True)
class Leak:
    """One kind of thing in one place of a capture."""

    category: Category
    where: str
    """The place, in the words of the format: a table and column, a field, a key."""
    count: int
    """Values that differ from each other; entries where only these can be counted."""
    fate: Fate


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with names."""

    hash_names: bool = False
    """Hash the names of kernels, ranges and threads, and every other text that would be kept."""
    salt: bytes = b""
    """Equal names get equal hashes in copies made with equal salt; random where none is given."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one walk through a capture found."""

    leaks: tuple[Leak, ...]
    suspects: tuple[Leak, ...] = ()
    """Names that are kept although they look like a path, an address or a key."""
    hidden: tuple[tuple[Category, str], ...] = field(default=(), repr=False)
    """Values that were left out, to be looked for in the copy; never shown."""
    notes: tuple[str, ...] = ()


class Cleaner(Protocol):
    """Knows one format: what is in a file of it, and how to write a copy without that."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What copies may be called; the first is the default."""
        ...

    def look(self, options: Options) -> Found:
        """Say what the capture holds, and what would become of it."""
        ...

    def write(self, output: Path, options: Options, *, name: str = "") -> Found:
        """Write the copy to a path where nothing lies yet; says what became of everything.

        `name` is what the copy will be called, where that is not the name of `output`.
        Who calls it removes what a failure leaves there.
        """
        ...
