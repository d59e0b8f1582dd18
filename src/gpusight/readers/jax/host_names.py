"""What the names of host events say: who made them, and how they are called elsewhere.

The profiler puts everything that happens on a thread on one line: Python calls, calls of the CUDA
driver, the runtime's own events and the program's annotations. Only their names, and some stats,
tell them apart.
"""

from __future__ import annotations

import re

from gpusight.model.api_names import strip_api_version
from gpusight.readers.jax.details import facts_of

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
