"""What of a PyTorch trace is copied: the known keys, and how their names and values are written."""

from __future__ import annotations

import enum
import re
import secrets
import sys
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.readers import chrome_source
from gpusight.readers.chrome_scan import NOT_JSON
from gpusight.readers.tables import file_name, shown_file
from gpusight.sharing.hashed_names import hash_kernel, hash_range, hash_text
from gpusight.sharing.known_words import is_call, is_group, is_operator, is_profiler_label, is_type
from gpusight.sharing.leak_report import Category, Treatment, without_homes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from gpusight.sharing.leak_report import LeakTally, ShareOptions

    Hide: TypeAlias = Callable[[str, bytes], str]
    Column: TypeAlias = "list[bytes | None]"


class ValueRule(enum.Enum):
    """How values of a key are written."""

    NUMBERS = "numbers"
    """Numbers, truth values and lists of them, as they stand."""
    QUOTED = "quoted"
    """The same, which some versions write as text."""
    TIME = "time"
    """A point in time: counted from a new origin where the clock shows the date."""
    DURATION = "duration"
    """One number, which may be quoted; a list of numbers could hold anything."""
    WORD = "word"
    """A text of the profiler's own; any other is hashed."""
    TYPES = "types"
    """Names of PyTorch's types; others are emptied."""
    CONCRETE = "concrete"
    """Arguments of operators: whole numbers and truth values, which are sizes and switches."""
    KERNEL = "kernel"
    """The name of a kernel."""
    GROUP = "group"
    """The name of a group of processes: one that everybody's jobs use; any other is hashed."""
    TRACK = "track"
    """A number, or the label of a track that stands for one."""


EVENT: dict[str, ValueRule] = {
    "pid": ValueRule.TRACK,
    "tid": ValueRule.TRACK,
    "ts": ValueRule.TIME,
    "dur": ValueRule.DURATION,
    "id": ValueRule.QUOTED,
    "bp": ValueRule.WORD,
    "s": ValueRule.WORD,
}
"""Keys of events besides `ph`, `cat`, `name` and `args`."""

_NUMBER_KEYS = (
    "External id", "external id", "Record function id", "Ev Idx", "Sequence number",
    "Fwd thread id", "correlation", "cbid", "cid", "stream", "device", "context", "Device",
    "Device Id", "Device Type", "Bytes", "Addr", "Total Reserved", "Total Allocated", "grid",
    "block", "registers per thread", "shared memory", "blocks per SM", "warps per SM",
    "est. achieved occupancy %", "memory bandwidth (GB/s)", "graph id", "graph node id",
    "Python id", "Python parent id", "Python module id", "Group size", "In msg nelems",
    "Out msg nelems", "In msg size", "Out msg size", "Global rank start", "Global rank stride",
    "Rank", "Op count", "Trace iteration", "wait_on_stream", "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id", "num_warps", "num_stages", "flops", "Flops", "FLOPs", "sort_index",
    "Input Dims", "Input dims", "Input Strides", "Output dims", "priority",
    "Seq",
)  # fmt: skip
_QUOTED_KEYS = ("bytes", "In split size", "Out split size", "Process Group Ranks", "finished")
_WORD_KEYS = (
    "Collective name", "dtype", "kind", "cuda_sync_kind", "kernel_backend", "scope", "Trace name",
)  # fmt: skip

ARGUMENTS: dict[str, ValueRule] = {
    **dict.fromkeys(_NUMBER_KEYS, ValueRule.NUMBERS),
    **dict.fromkeys(_QUOTED_KEYS, ValueRule.QUOTED),
    **dict.fromkeys(_WORD_KEYS, ValueRule.WORD),
    "Input type": ValueRule.TYPES,
    "Output type": ValueRule.TYPES,
    "Concrete Inputs": ValueRule.CONCRETE,
    "kernel": ValueRule.KERNEL,
    "kernel_name": ValueRule.KERNEL,
    "Process Group Name": ValueRule.GROUP,
    "Process Group Description": ValueRule.GROUP,
}
"""Keys of `args`."""

REMOVED_ARGUMENTS: dict[str, Category] = {
    "Call stack": Category.CODE,
    "Module Hierarchy": Category.CODE,
    "kernel_hash": Category.CODE,
    "kernel_file": Category.FILE_PATHS,
    "kernel_kwargs": Category.VALUES,
    "Input names": Category.VALUES,
    "Output names": Category.VALUES,
    "Extra arguments": Category.VALUES,
    "src": Category.VALUES,
    "dst": Category.VALUES,
    "queued": Category.CAPTURE_TIME,
    "external ts": Category.CAPTURE_TIME,
}
"""Keys of `args` that we know and leave behind, and what they hold."""

TOP_NUMBERS = frozenset(
    {
        "schemaVersion", "record_shapes", "with_stack", "with_flops", "with_modules",
        "profile_memory", "cupti_version", "cuda_runtime_version", "cuda_driver_version",
        "hip_runtime_version", "hip_driver_version", "roctracer_version", "rocprofiler_version",
        "rocprofiler-sdk_version",
    }
)  # fmt: skip
"""Top-level keys that hold numbers."""

REMOVED_TOP: dict[str, Category] = {
    "traceName": Category.FILE_PATHS,
    "baseTimeNanoseconds": Category.CAPTURE_TIME,
    "host_name": Category.HOST_NAMES,
    "hostname": Category.HOST_NAMES,
    "username": Category.USER_NAMES,
    "tw_user": Category.USER_NAMES,
    "trace_id": Category.HARDWARE_IDS,
    "INFO": Category.PROGRAM_OUTPUT,
    "WARNING": Category.PROGRAM_OUTPUT,
    "ERROR": Category.PROGRAM_OUTPUT,
}
"""Known top-level keys that are removed."""

DEVICE_NUMBERS = frozenset(
    {
        "id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock",
        "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "warpSize",
        "sharedMemPerBlock", "sharedMemPerMultiprocessor", "sharedMemPerBlockOptin", "numSms",
        "multiProcessorCount", "maxSharedMemoryPerMultiProcessor", "clockRate", "memoryClockRate",
        "memoryBusWidth", "l2CacheSize",
    }
)  # fmt: skip
"""What the description of a GPU may hold besides its name."""

JOB_NUMBERS = frozenset({"rank", "world_size", "pg_count", "nccl_version"})
GROUP_NUMBERS = frozenset({"pg_size", "group_count", "ranks"})
"""Numbers of the job and of its groups."""

CATEGORIES = frozenset(
    {
        "cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "concurrent_kernel",
        "gpu_memcpy", "memcpy", "gpu_memset", "memset", "cuda_runtime", "runtime", "cuda_driver",
        "driver", "xpu_runtime", "xpu_driver", "hip_runtime", "cuda_sync", "python_function",
        "overhead", "trace", "operator", "cpu_instant_event", "ac2g", "fwdbwd", "async",
    }
)  # fmt: skip
"""Categories as profilers write them; others that the reader places get the name of their kind."""

# Names --------------------------------------------------------------------------------------------

_FRAME = re.compile(r"(?P<file>[^()]*?)\((?P<line>-?\d+)\): (?P<function>.*)", re.DOTALL)
_MODULE = re.compile(r"nn\.Module: (?P<name>.*?)(?P<number>_\d{1,6})?", re.DOTALL)
_BUILT_IN = re.compile(r"<built-in (?P<what>method|function) (?P<name>\w+).*>", re.DOTALL)
_GENERATED = re.compile(r"\b[a-z2-7]{2}/c[a-z2-7]{40,80}\.py$")
"""Files that torch.compile writes are named by a hash already; analyses recognize them by that."""
_PACKAGES = """
    accelerate apex datasets deepspeed diffusers einops fairscale flash_attn flax functorch
    flashinfer huggingface_hub ignite jax jaxlib lightning megatron numpy optax pandas peft
    pytorch_lightning
    scipy sglang tensorflow timm tokenizers torch torchaudio torchdata torchgen torchrec torchtext
    torchvision tqdm transformer_engine transformers triton trl vllm xformers
"""
_PUBLIC = sys.stdlib_module_names | set(_PACKAGES.split())
"""Public packages: the place of a function in them reveals nothing."""
_HIDDEN_FOLDER = "~/"
"""Stands for the folders of a file: without one, `queue.py` would be taken for Python's own."""
_PARTS = """
    _dynamo _functorch _higher_order_ops _inductor _ops _subclasses _tensor _utils ao autocast
    autocast_mode autograd backends checkpoint container conv cuda data data_parallel dataloader
    distributed fetch fsdp function functional fx grad_mode graph init jit linear loss lr_scheduler
    models module modules nn optim optimizer parallel profiler pooling runtime streams testing
    torch utils worker
"""
_FOLDERS = frozenset(_PARTS.split())
"""Parts of paths inside PyTorch that analyses look at, or that everyone knows."""


@dataclass(frozen=True, slots=True)
class EventNaming:
    """What the names of one kind of event reveal, and how they are written."""

    category: Category
    hide: Hide
    """Makes the name that stands in a copy with hashed names."""
    show: Callable[[str], str] | None = None
    """Makes the name that stands in any other copy; none where it stays but for home folders."""

    def clean(self, name: str, salt: bytes | None) -> str:
        """Return the name as it stands in the copy; hashed where a salt is given."""
        if salt is not None:
            return self.hide(name, salt)
        return without_homes(name) if self.show is None else self.show(name)


def short_frame(name: str) -> str:
    """Shorten the path of a Python frame to the file, or to where it lies in a public package."""
    match = _FRAME.fullmatch(name)
    if match is None:
        if name.startswith("<") or _MODULE.fullmatch(name):
            return name
        return " ".join(file_name(word) if "/" in word else word for word in name.split(" "))
    return f"{short_path(match['file'])}({match['line']}): {match['function']}"


def hide_frame(name: str, salt: bytes) -> str:
    """Hash a Python frame but for the line, and for what is PyTorch's or Python's own."""
    match = _FRAME.fullmatch(name)
    if match is not None:
        path = hidden_path(short_path(match["file"]), salt)
        return f"{path}({match['line'][:7]}): {hash_range(match['function'], salt)}"
    match = _MODULE.fullmatch(name)
    if match is not None:
        return f"nn.Module: {hash_range(match['name'], salt)}{match['number'] or ''}"
    match = _BUILT_IN.fullmatch(name)
    if match is not None:
        return f"<built-in {match['what']} {hash_range(match['name'], salt)}>"
    return hash_range(name, salt)


def short_path(path: str) -> str:
    """Shorten a path to the file, or to where it lies in a public package."""
    if path.startswith("<"):  # code without a file, such as <string>
        return path
    shown = shown_file(path) or ""
    generated = _GENERATED.search(shown)
    if generated is not None:
        return generated.group()
    first = shown.partition("/")[0].removesuffix(".py")
    if first in _PUBLIC or "/" not in shown:
        return shown
    return _HIDDEN_FOLDER + file_name(shown)


def hidden_path(path: str, salt: bytes) -> str:
    """Hash a shortened path but for the folders of public packages."""
    if _GENERATED.fullmatch(path):
        return f"zz/c{''.join(hash_text(path[i:], salt) for i in range(3))}.py"
    return "/".join(_hidden_part(part, salt) for part in path.split("/"))


def _hidden_part(part: str, salt: bytes) -> str:
    stem, dot, ending = part.partition(".")
    is_file = dot + ending in {"", ".py", ".pyx"}
    if is_file and (stem in _FOLDERS or stem in _PUBLIC or part == "~"):
        return part
    return hash_range(stem, salt) + dot + ending if is_file else hash_range(part, salt)


def _hide_unless(known: Callable[[str], bool], otherwise: Hide) -> Hide:
    return lambda name, salt: name if known(name) else otherwise(name, salt)


_RANGE = EventNaming(Category.PROGRAM_TEXTS, _hide_unless(is_operator, hash_range))
_CALL = EventNaming(Category.CALLS, _hide_unless(is_call, hash_range))
_COPIED = EventNaming(Category.PROFILER, _hide_unless(is_profiler_label, hash_range))
KERNELS = EventNaming(Category.KERNEL_NAMES, hash_kernel)
_PYTHON = EventNaming(Category.PYTHON_FUNCTIONS, hide_frame, short_frame)

NAMINGS: dict[str, EventNaming] = {
    chrome_source.OPERATOR: _RANGE,
    chrome_source.ANNOTATION: _RANGE,
    chrome_source.GPU_ANNOTATION: _RANGE,
    chrome_source.KERNEL: KERNELS,
    chrome_source.COPY: _COPIED,
    chrome_source.MEMSET: _COPIED,
    chrome_source.RUNTIME: _CALL,
    chrome_source.DRIVER: _CALL,
    chrome_source.PYTHON: _PYTHON,
}
"""Of the kinds whose names are the program's; those of the others are the profiler's own words."""


# Values -------------------------------------------------------------------------------------------

_NUMBERS = re.compile(rb'[^"{]*')
"""The decoder has seen that values are JSON: without texts and objects, numbers are left."""
_QUOTED = re.compile(rb'(?:[-+0-9.eE\[\], \t\r\n"]|[Tt]rue|[Ff]alse|null|0x[0-9a-f]+)*')
_SCALAR = rb'(?:"?[-+]?[0-9]*[.]?[0-9]*(?:[eE][-+]?[0-9]+)?"?|null)'
_SCALARS = re.compile(rb"%b(?:\n%b)*" % (_SCALAR, _SCALAR))
"""Numbers that may be quoted, one a line."""
_MAX_TIME_DIGITS = 18
"""A trillion seconds: no clock counts as far, and the digits of 1e999999999 fill the memory."""
_CALENDAR_FROM = 10**14
"""Microseconds since 1970 have sixteen digits today; no other clock of a profiler has fifteen."""
_DATED_FROM = 10**10
"""Microseconds from which a time is not the program's own: clocks since 1970, since the machine was
started, or since the quarter began. PyTorch counts from multiples of 7889238 seconds, so that even
without its base a time is that of the day in some quarter."""
_CALENDAR = re.compile(rb"\d{15}")
_SECOND_US = 10**6
_MARGIN_US = 3600 * _SECOND_US
"""Events may stand before the one that is read first."""
_TRACK = re.compile(r"(?:stream |GPU |thread )?-?\d{1,18} ?")
_THREAD = re.compile(r"thread -?\d{1,18} \((?P<name>.*)\)\s*", re.DOTALL)
_SWITCH = rf"(?:-?\d{{1,9}}|{(1 << 63) - 1}|True|False)"
"""A size, a position or a switch; the largest number stands for the end of a dimension."""
_CONCRETE = re.compile(rf"{_SWITCH}|\[(?:{_SWITCH}(?:, ?|(?=\])))*\]")
_CATEGORIES = {ValueRule.WORD: Category.UNKNOWN, ValueRule.GROUP: Category.PROGRAM_TEXTS}
"""What a text reveals that is none of the words of its rule."""
_MAX_MEMOIZED = 1 << 16
_FIRST_TRACK = 1_000_000
"""Labels of tracks are numbered below zero from here: no track of a profiler is."""
_NULL = b"null"
_NOTHING = b'""'


class _Memo(dict[bytes, "bytes | None"]):
    """Caches cleaned texts; starts anew rather than growing without limit."""

    def __init__(self, clean: Callable[[bytes], bytes | None]) -> None:
        super().__init__()
        self._clean = clean

    def __missing__(self, raw: bytes) -> bytes | None:
        if len(self) > _MAX_MEMOIZED:
            self.clear()
        cleaned = self[raw] = self._clean(raw)
        return cleaned


class ValueWriter:
    """Writes columns of values as they may stand in the copy, and counts what they reveal.

    Each distinct text is checked once.
    """

    def __init__(self, options: ShareOptions, tally: LeakTally) -> None:
        self._tally = tally
        self._hashed = options.hash_names
        self.salt = options.salt or secrets.token_bytes(32)
        self._memos: dict[Any, _Memo] = {}
        self._tracks: dict[str, int] = {}
        self._shift_us: int | None = None

    def column(self, rule: ValueRule, where: str, raw: Sequence[Any]) -> Column:
        """Write the values of one key."""
        if rule in (ValueRule.NUMBERS, ValueRule.QUOTED):
            return self._numbers(_NUMBERS if rule is ValueRule.NUMBERS else _QUOTED, where, raw)
        if rule is ValueRule.DURATION:
            return self._numbers(_SCALARS, where, raw)
        if rule is ValueRule.TIME:
            return self._times(where, raw)
        values = list(map(bytes, raw))
        if rule is ValueRule.TRACK:
            self._tally.add_all(Category.PROCESS_NUMBERS, where, Treatment.KEPT, set(values))
        memo = self._memo((rule, where), lambda text: self._text(rule, where, text))
        return [memo[value] for value in values]

    def names(self, naming: EventNaming | None, where: str, raw: Sequence[Any]) -> Column:
        """Write names of events; those that no rule is for are the profiler's own words."""
        if naming is None:
            return self.column(ValueRule.WORD, where, raw)
        memo = self._memo((naming, where), lambda text: self._name(naming, where, text))
        return [memo[bytes(value)] for value in raw]

    def labels(self, category: Category, where: str, raw: Sequence[Any]) -> Column:
        """Write names of processes and threads: known ones, and None for all others."""
        memo = self._memo((category, where), lambda text: self._label(category, where, text))
        return [memo[bytes(value)] for value in raw]

    def _memo(self, key: Any, clean: Callable[[bytes], bytes | None]) -> _Memo:
        if key not in self._memos:
            self._memos[key] = _Memo(clean)
        return self._memos[key]

    # Numbers --------------------------------------------------------------------------------------

    def _numbers(self, pattern: re.Pattern[bytes], where: str, raw: Sequence[Any]) -> Column:
        if pattern.fullmatch(b"\n".join(raw)):
            return list(raw)
        return [self._number(pattern, where, bytes(value)) for value in raw]

    def _number(self, pattern: re.Pattern[bytes], where: str, value: bytes) -> bytes:
        return value if pattern.fullmatch(value) else self._no_number(where, value)

    def _no_number(self, where: str, value: bytes) -> bytes:
        self._tally.add(Category.UNKNOWN, f"{where}: no number", Treatment.REMOVED, value)
        return _NULL

    def _times(self, where: str, raw: Sequence[Any]) -> Column:
        values = self._numbers(_SCALARS, where, raw)
        if self._shift_us == 0 and not _CALENDAR.search(b"\n".join(v or b"" for v in values)):
            return values
        return [self._shifted(where, bytes(value or b"")) for value in values]

    def _shifted(self, where: str, value: bytes) -> bytes:
        """Count a time from a new origin, digit by digit, where it would show the date."""
        if value in (b"", _NULL, _NOTHING):
            return value
        try:
            time = Decimal(value.decode().strip('"'))
        except InvalidOperation:
            return self._no_number(where, value)
        if time.adjusted() >= _MAX_TIME_DIGITS:
            return self._no_number(where, value)
        if time == 0:
            return value
        # The first time decides for all: what is cut at a threshold would be torn apart there.
        if self._shift_us is None or (self._shift_us == 0 and time >= _CALENDAR_FROM):
            self._shift_us = self._origin(where, int(time))
        if not self._shift_us or time < min(self._shift_us, _DATED_FROM):
            return value
        return f"{time - self._shift_us:f}".encode()

    def _origin(self, where: str, time_us: int) -> int:
        if time_us < _DATED_FROM:
            return 0
        self._tally.add(Category.CAPTURE_TIME, where, Treatment.REMOVED, 0)
        return time_us // _SECOND_US * _SECOND_US - _MARGIN_US

    # Texts ----------------------------------------------------------------------------------------

    def _name(self, naming: EventNaming, where: str, raw: bytes) -> bytes:
        text = text_of(raw)
        if text is None:
            return _NULL
        cleaned = naming.clean(text, self.salt if self._hashed else None)
        changed = Treatment.HASHED if self._hashed else Treatment.SHORTENED
        treatment = Treatment.KEPT if cleaned == text else changed
        self._tally.add(naming.category, where, treatment, text)
        self._tally.hide(naming.category, text)
        if not self._hashed:
            self._tally.keep(cleaned)
        return _json(cleaned)

    def _text(self, rule: ValueRule, where: str, raw: bytes) -> bytes:
        if rule is ValueRule.TYPES:
            return _json(_each(_value_of(raw), is_type))
        if rule is ValueRule.CONCRETE:
            return self._concrete(where, raw)
        if rule is ValueRule.KERNEL:
            return self._name(KERNELS, where, raw)
        text = text_of(raw)
        if text is None:
            return self._number(_NUMBERS, where, raw)
        if rule is ValueRule.TRACK:
            return self._track(text)
        known = (
            is_group(text) if rule is ValueRule.GROUP else is_profiler_label(text) or is_type(text)
        )
        return _json(text) if known else self._hashed_always(_CATEGORIES[rule], where, text)

    def _hashed_always(self, category: Category, where: str, text: str) -> bytes:
        """Hash a text that stands in no copy; equal ones stay equal."""
        self._tally.add(category, where, Treatment.HASHED, text)
        self._tally.hide(category, text)
        return _json(hash_text(text, self.salt))

    def _concrete(self, where: str, raw: bytes) -> bytes:
        value = _value_of(raw)
        kept = _each(value, lambda text: _CONCRETE.fullmatch(text) is not None)
        self._tally.add(Category.VALUES, where, Treatment.SHORTENED, raw)
        return _json(kept)

    def _track(self, text: str) -> bytes:
        if _TRACK.fullmatch(text) or is_profiler_label(text):
            return _json(text)
        self._tally.add(Category.THREAD_NAMES, "labels of tracks", Treatment.REMOVED, text)
        number = self._tracks.setdefault(text, len(self._tracks))
        return b"%d" % -(_FIRST_TRACK + number)

    def _label(self, category: Category, where: str, raw: bytes) -> bytes | None:
        text = text_of(raw)
        if text is None:
            return None
        thread = _THREAD.fullmatch(text)
        name = file_name(thread["name"] if thread else text).strip()
        if is_profiler_label(name):
            return raw if thread or "/" not in text else _json(name)
        self._tally.add(category, where, Treatment.REMOVED, text)
        self._tally.hide(category, text)
        return None


def text_of(raw: bytes) -> str | None:
    """Read a JSON text, whatever its encoding; None where it is none."""
    value = _value_of(raw)
    return value if isinstance(value, str) else None


def _value_of(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw.decode("utf-8", "replace"))
    except NOT_JSON:
        return None


def _each(value: Any, known: Callable[[str], bool], depth: int = 0) -> Any:
    """Empty the texts of a list that are not known; what is no list of texts is left out."""
    if isinstance(value, str):
        return value if known(value) else ""
    if isinstance(value, list) and depth < 2:
        return [_each(item, known, depth + 1) for item in value]
    return None


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
