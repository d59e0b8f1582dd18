"""Which collective a name means: kernels, NVTX ranges, operators, MPI and UCX calls, XLA."""

from __future__ import annotations

import re
from functools import lru_cache

OTHER = "other"
"""Communication whose name has no kind, such as RCCL's `ncclDevKernel_Generic`."""
SEND = "send"
POINT_TO_POINT = frozenset({SEND, "recv"})
"""Kinds in which one rank sends and another receives: not all of a group take part."""

# In the order in which they are looked for: `reducescatter` holds `reduce` and `scatter` too.
_KINDS = {
    "all_reduce": r"allreduce|crossdevicereduce|multimemreduce|suminplacegpu(?!\w\w(?:ag|rs))",
    "reduce_scatter": r"reducescatter|suminplacegpu\w\wrs",
    "all_gather": r"allgather|crossdevicestore|suminplacegpu\w\wag",
    "all_to_all": r"alltoall|a2a|(?:ep|int(?:er|ra)node(?:ll)?)(?:dispatch|combine)",
    "permute": r"collectivepermute|ppermute",
    "send_recv": r"sendrecv",
    "broadcast": r"broadcast|bcast",
    "barrier": r"barrier",
    "reduce": r"reduce",
    "gather": r"gather",
    "scatter": r"scatter",
    "send": r"send",
    "recv": r"recv",
}
KINDS = (*_KINDS, OTHER)
"""Every kind of collective."""
_ANY_KIND = [(kind, re.compile(pattern)) for kind, pattern in _KINDS.items()]
_MAX_NAME = 300
_NOT_A_WORD = re.compile(r"[^a-z0-9]+")
# The function's own name: without its arguments, template arguments or what follows in NVTX texts
# of PyTorch (`nccl:all_to_all, op_id = 17`).
_OWN_NAME = re.compile(r"[(<,\[]")
_UNNAMED = re.compile(r"\(anonymous namespace\)|\{anonymous\}|<unnamed>")
_NCCL_CALL = re.compile(
    r"^p?nccl(?:All(?:Reduce|Gather|[Tt]oAllv?)|Reduce(?:Scatter)?|Broadcast|Bcast|Send|Recv|Gather"
    r"|Scatter)$"
)
_FRAMEWORK_CALL = re.compile(r"^(?P<library>nccl|gloo|mpi|ucc|xccl|rccl|hccl):\w")
_HOST_LIBRARIES = frozenset({"gloo", "mpi", "ucc"})
_MPI = re.compile(r"^P?MPI_I?(?P<call>\w+)")
_UCX = re.compile(r"^ucp_(?:tag|stream|am)_(?P<way>send|recv)")
_ASYNC_PAIR = re.compile(r"^(?P<kind>[a-z][a-z-]*?)-(?P<edge>start|done)(?P<number>\.\d+)?$")


@lru_cache(maxsize=65_536)
def collective_kind(name: str) -> str | None:
    """Return the kind that a name means, such as `all_reduce`; None where it has none.

    The caller knows that the name is one of communication: `reduce_kernel` is not.
    """
    own = _OWN_NAME.split(_UNNAMED.sub("", name[:_MAX_NAME]), maxsplit=1)[0]
    text = _NOT_A_WORD.sub("", own.lower())
    return next((kind for kind, pattern in _ANY_KIND if pattern.search(text)), None)


def nccl_call_kind(name: str) -> str | None:
    """Return the kind of a call that NCCL marks with NVTX, such as `ncclAllReduce`."""
    return collective_kind(name) if _NCCL_CALL.match(name) else None


def framework_call(name: str) -> tuple[str, str] | None:
    """Return library and kind of a range of PyTorch's process groups, such as `gloo:all_reduce`."""
    match = _FRAMEWORK_CALL.match(name)
    kind = collective_kind(name.partition(":")[2]) if match else None
    return None if match is None or kind is None else (match["library"], kind)


def host_collective_kind(name: str) -> str | None:
    """Return the kind of a collective that runs on the CPU: gloo, MPI or UCC in PyTorch."""
    call = framework_call(name)
    return call[1] if call and call[0] in _HOST_LIBRARIES else None


def library_call_kind(name: str) -> str | None:
    """Return the kind of a call of MPI or UCX that nsys traced; None for waits and the like."""
    if match := _UCX.match(name):
        return match["way"]
    match = _MPI.match(name)
    if match is None or re.match(
        r"(?i)wait|test|start|init|finalize|comm_|get|\w+_init$", match["call"]
    ):
        return None
    return collective_kind(match["call"])


def async_edge(name: str) -> tuple[str, str, str] | None:
    """Split XLA's `all-reduce-start.3` into kind, edge and number; None for anything else."""
    match = _ASYNC_PAIR.match(name)
    kind = collective_kind(match["kind"]) if match else None
    if match is None or kind is None:
        return None
    return kind, match["edge"], match["number"] or ""
