"""What names and packed texts of JAX events say: `regs:32 static_shared:0 grid:4,1,1 …`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.name_columns import strip_api_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    Facts: TypeAlias = Mapping[str, int | float | str | None]


_WHOLE = re.compile(r"\d{1,18}")

MEMORY_KINDS = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
}
PEER = "Peer-to-Peer"
COPY_KINDS = {
    "MemcpyH2D": "Host-to-Device",
    "MemcpyD2H": "Device-to-Host",
    "MemcpyD2D": "Device-to-Device",
    "MemcpyP2P": PEER,
}
"""What the name of a copy says; others have to be told by the memory on both sides."""
_SIDES = {"Pageable": "Host", "Pinned": "Host", "Device": "Device", "Device Static": "Device"}


def facts_of(text: str) -> dict[str, str]:
    """Take such a text apart."""
    facts = (word.partition(":") for word in text.split())
    return {name: value for name, _, value in facts}


def whole_number(text: str | None) -> int | None:
    """Read a whole number, if it is one."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def facts_by_row(
    places: pl.Series, words: Sequence[str], read: Callable[[str], Facts], schema: pl.Schema
) -> pl.DataFrame:
    """Read each text that occurs once, and give every row the facts of its own text."""
    used = places.drop_nulls().unique().to_list()
    rows = [{"place": place, **read(words[place])} for place in used]
    known = pl.DataFrame(rows, schema={"place": places.dtype, **schema})
    joined = places.to_frame("place").join(known, on="place", how="left", maintain_order="left")
    return joined.drop("place")


_LAUNCH = (
    *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
    "registers_per_thread",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "shared_bytes",
)
KERNEL_FACTS = pl.Schema(dict.fromkeys(_LAUNCH, pl.Int64))


def kernel_facts(text: str) -> Facts:
    """Read how a kernel was launched."""
    facts = facts_of(text)
    static, dynamic = (
        whole_number(facts.get("static_shared")),
        whole_number(facts.get("dynamic_shared")),
    )
    return {
        **_axes("grid", facts.get("grid")),
        **_axes("block", facts.get("block")),
        "registers_per_thread": whole_number(facts.get("regs")),
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
        "shared_bytes": None if static is None or dynamic is None else static + dynamic,
    }


def _axes(what: str, text: str | None) -> dict[str, int | None]:
    sizes = [whole_number(size) for size in (text or "").split(",")]
    if len(sizes) != 3:
        sizes = [None] * 3
    return {f"{what}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}


COPY_FACTS = pl.Schema(
    {
        "bytes": pl.Int64,
        "src_kind": pl.String,
        "dst_kind": pl.String,
        "destination": pl.Int64,
        "between": pl.String,
    }
)


def copy_facts(text: str) -> Facts:
    """Read what a copy moved; `between` is the direction that the kinds of memory tell."""
    facts = facts_of(text)
    source = _memory(facts.get("kind_src"))
    target = _memory(facts.get("kind_dst"))
    sides = [_SIDES.get(kind or "") for kind in (source, target)]
    return {
        "bytes": whole_number(facts.get("size")),
        "src_kind": source,
        "dst_kind": target,
        "destination": whole_number(facts.get("dest")),
        "between": "Unknown" if None in sides else "-to-".join(map(str, sides)),
    }


FILL_FACTS = pl.Schema({"bytes": pl.Int64, "memory_kind": pl.String})


def fill_facts(text: str) -> Facts:
    """Read what a memset filled."""
    facts = facts_of(text)
    return {
        "bytes": whole_number(facts.get("num_bytes")),
        "memory_kind": _memory(facts.get("kind")),
    }


def _memory(kind: str | None) -> str | None:
    return None if kind is None else MEMORY_KINDS.get(kind.lower(), "Unknown")


CONTEXT = pl.Schema({"context": pl.Int64})


def context_facts(text: str) -> Facts:
    """Read the number of a CUDA context, which is written as `$$1`."""
    return {"context": whole_number(text.removeprefix("$$"))}


PYTHON, RUNTIME, PLAIN, NVTX = "python", "runtime", "plain", "nvtx"
CALL, STEP, MEMORY, OVERHEAD, MARK = "call", "step", "memory", "overhead", "mark"

THREAD_NUMBERS = 1 << 32
"""The profiler's own exports cut the numbers of threads to 32 bits."""
_MEMORY = {"MemoryAllocation": "allocation", "MemoryDeallocation": "deallocation"}
_OVERHEADS = frozenset({"COMPILER", "BUFFER_FLUSH", "INSTRUMENTATION", "RESOURCE", "<UNKNOWN>"})
_NVTX = "NVTX:"
_MARK = re.compile(r"ThreadpoolListener::(Record|StartRegion|StopRegion)$")
_FUNCTION = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*$")
_RUNTIME = re.compile(
    r"(?:\[\d+\] )?[A-Z]\w*::"  # a class of the runtime and its function
    r"|(?:absl|ifrt|jax|jaxlib|mlir|pjrt|stream_executor|tensorflow|tpu|tsl|xla)::"
    r"|(?:Jit|Pjit|Pmap)Function\("
    r"|PJRT_\w+"
    r"|[DH]2[DH] (?:Copy|Dispatch)\b"
    r"|end: "
    r"|(?:"
    # What JAX itself annotates, inside or outside of a compiled function's call.
    r"ArrayImpl\.copy_to_host_async|BlockHostUntilReady|DevicePut(?:WithSharding)?|DispatchToHost"
    r"|ExecuteReplicated\.__call__|ParseArguments|UnloadedPmapExecutable\.compile"
    r"|Wait for (?:donation|usage) holds|backend_compile(?:_and_load)?|batched_device_put"
    r"|lower_(?:mesh|sharding)_computation|lower_parallel_callable|np\.asarray\(jax\.Array\)"
    r"|pickle_util\.(?:dumps|loads)|shard_args|trace_to_jaxpr\w*"
    r")$"
)
RUNTIME_STATS = ("_src", "_p", "_pt", "_c", "_ct", "run_id", "hlo_op", "hlo_module", "program_id")
"""Stats that only the runtime gives to its events."""

_SOURCE = re.compile(r"\$(?P<file>.*):(?P<line>\d+) (?P<function>.*)$", re.DOTALL)
_BUILT_IN = re.compile(r"\$(?P<module>\S+) (?P<function>.*)$", re.DOTALL)
_GRAPH = re.compile(r" \(CudaGraph:\d+\)$")
_COPIES = {
    "MemcpyH2D": "MemcpyHtoD",
    "MemcpyD2H": "MemcpyDtoH",
    "MemcpyD2D": "MemcpyDtoD",
    "MemcpyP2P": "MemcpyPeer",
    "MemcpyOther": "Memcpy",
    "Memset": "Memset",
}
_CALLS = {
    "MemoryAlloc": "MemAlloc",
    "MemoryFree": "MemFree",
    "HostRegister": "MemHostRegister",
    "HostUnregister": "MemHostUnregister",
}


def role_of(name: str) -> str:
    """Tell what kind of event bears this name, as far as the name can tell."""
    if name.startswith("$"):
        return PYTHON
    if name.startswith(_NVTX):
        return NVTX
    if name in _MEMORY:
        return MEMORY
    if name in _OVERHEADS:
        return OVERHEAD
    if _MARK.match(name):
        return MARK
    if _FUNCTION.match(name):
        return CALL
    return RUNTIME if _RUNTIME.match(name) else PLAIN


def is_pool(thread: str, number: int) -> bool:
    """Tell a thread of the runtime, which bears its number, from one that runs the program."""
    ending = re.search(r"/(-?\d{1,20})$", thread)
    return ending is not None and (int(ending[1]) - number) % THREAD_NUMBERS == 0


def python_name(name: str) -> str:
    """Write `$train.py:12 step` as `train.py(12): step`; built-in functions have no file."""
    source = _SOURCE.match(name)
    if source is not None:
        return f"{source['file']}({source['line']}): {source['function']}"
    built_in = _BUILT_IN.match(name)
    if built_in is None:
        return name.removeprefix("$") or "?"
    module, function = built_in["module"], built_in["function"]
    if module == "<unknown>":
        return f"<built-in method {function}>"
    return f"<built-in function {function if module == 'builtins' else f'{module}.{function}'}>"


def nvtx_name(name: str) -> str:
    """Give the text of an NVTX range, with its domain where it has one."""
    return name.removeprefix(_NVTX)


def memory_operation(name: str) -> str:
    """Tell taking memory from giving it back."""
    return _MEMORY[name]


def api_name(name: str, detail: str, *, vendor: str) -> str:
    """Name the function that a driver call is of.

    The profiler writes down what the call did, not what was called: a launch bears the name of its
    kernel, a copy its direction.
    """
    said = _GRAPH.sub("", name)
    if _FUNCTION.match(said):
        return strip_api_version(said)
    prefix = "hip" if vendor == "AMD" else "cu"
    if said in _COPIES:
        ending = "Async" if facts_of(detail).get("async") == "1" else ""
        return f"{prefix}{_COPIES[said]}{ending}"
    return prefix + _CALLS.get(said, "LaunchKernel")


def api_symbol(name: str) -> str | None:
    """Give the function as recorded, where one was."""
    said = _GRAPH.sub("", name)
    return said if _FUNCTION.match(said) else None


def api_kind(function: str) -> str:
    """Tell the driver's functions from those of the runtime library."""
    return "driver" if re.match(r"cu[A-Z]", function) else "runtime"
