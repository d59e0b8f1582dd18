"""Host time spent on input: by name, or unnamed reads and waits before copies to the GPU."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import CallKind, OpKind
from gpusight.trace.intervals import Intervals, coverage

if TYPE_CHECKING:
    from gpusight.analysis.ledger.host_lanes import HostLanes
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_LONGEST = 300
_FRAME = re.compile(r"([^/\\(]*)\.pyx?\(\d+\): (.*)$", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"h5(?:py)?|[a-z]+")
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (\w+)")
_FRAMEWORK = re.compile(r"^(?:.{0,200}/)?torch/(?!utils/data/).{0,200}\.py\(")
_OPERATORS = re.compile(r"^(?:aten|prim|prims|c10d?|nccl|torch|autograd|triton|inductor)::")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CERTAIN = _set(
    """
    dataload dataloader dataloaders dataloading dataset datasets datapipe datapipes datamodule
    datafeed databatch minibatcher collate collator tokenize tokenizer tokenization tokenise
    tokeniser tokenisation augment augmentation augmentations preprocess preprocessing preproc
    preprocessor parquet tfrecord tfrecords webdataset lmdb ffcv dali hdf h5 h5py imread
    imdecode fread getnext sleep nanosleep usleep read reading reader readers
    """
)
_ACTIONS = _set(
    """
    load loads loading loader loaders fetch fetches fetching fetcher get next prefetch prefetching
    prefetcher wait waiting await generate generation gen make build create iter iterator iterate
    decode decoding dequeue queue feed feeder feeding ingest ingestion pipeline producer produce
    transform transforms prep prepare preparation sampler shuffle stream streaming download pull
    acquire receive recv stage staging time transfer
    """
)
_THINGS = _set(
    """
    data batch batches minibatch minibatches microbatch sample samples example examples input
    inputs image images jpeg jpg png video videos audio frames record records file files disk
    prompt prompts io corpus
    """
)
_PLAIN = _set("data input inputs io")
_ALONE = _PLAIN | _set("batch batches minibatch next samples fetch fetching load loading")
_FILLERS = _set("train training val valid validation test eval host cpu the step phase")
_OTHERWISE = _set(
    """
    token tokens parallel embedding embeddings layernorm norm grad grads gradient gradients
    backward optimizer kv cache ptr dependency layout kernel proj projection checkpoint weights
    vae latent latents unet transformer decoder model attention alltoall allgather allreduce recat
    """
)
_LESS = frozenset({"prepare", "preparation", "prep", "make", "build", "create", "get"})
"""What is also done to the inputs of a model, on their way to the GPU."""
_MODELS = frozenset({"input", "inputs", "io"})
_REQUESTS = frozenset({"request", "requests"})
_ARRIVALS = frozenset({"recv", "receive", "receiving", "fetch", "poll", "polling", "dequeue"})

_COMPILING = re.compile(
    r"dynamo_timed|\bcompile_(?:inner|fx|file)|_compile\.compile|inductor_compile|jit_?compile"
    r"|backend_compile|Xla(?:Compile|Emit|Optimize|Pass|Autotun)|nvrtc|ptxas|CompileModule|LoadModule|load_?module"
    r"|importlib|<frozen importlib",
    re.IGNORECASE,
)
_LOADING = re.compile(r"(?:function|module) loading", re.IGNORECASE)
_READS = re.compile(
    r"^_*(?:(?:p|f|getdents|sp)?read(?:v|64|dir|ahead|link)?\d*|fgets|fgetc|getline|getdelim"
    r"|(?:clock_)?nanosleep|u?sleep|recv(?:from|mmsg|msg)?|p?poll|p?select|epoll_p?wait\d*"
    r"|io_getevents|accept4?)(?:_chk|_unlocked|_nocancel)?$"
)
_WAITS = re.compile(
    r"^_*(?:futex|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:timed)?lock|rwlock_\w*lock|join"
    r"|barrier_wait|spin_lock)|sem_(?:timed|clock)?wait|wait(?:pid|id|[34])?|sched_yield|sigwait\w*"
    r"|flock|fsync|fdatasync|write|pwrite\w*|fwrite|fflush|dlopen|system|connect|fork|v?fork)"
)


_LOCKS = re.compile(r"^_*(?:futex|pthread_cond_(?:timed|clock)?wait|sem_(?:timed|clock)?wait)")


@lru_cache(maxsize=65_536)
def is_input(name: str) -> bool:
    """Tell whether the name of a range, operator or Python call speaks of input."""
    text = name[:_LONGEST]
    if _OPERATORS.match(text) or _FRAMEWORK.match(text):
        return False
    found = set(_words(text))
    if _BUILT_IN.match(text):
        return bool(found & _CERTAIN)
    if not found or found & _OTHERWISE:
        return False
    if found & _CERTAIN or found <= _ALONE or (found & _PLAIN and found <= _PLAIN | _FILLERS):
        return True
    actions, things = found & _ACTIONS, found & _THINGS
    if actions <= _LESS:
        things -= _MODELS
    arrivals = found & _REQUESTS and found & _ARRIVALS
    return bool((actions and things) or arrivals) or {"iterator", "next"} <= found


def is_compiling(name: str) -> bool:
    """Tell whether a name speaks of compiling or loading code."""
    return _COMPILING.search(name[:_LONGEST]) is not None


def is_loading(name: str) -> bool:
    """Tell whether what the profiler counts as overhead is the loading of code in truth."""
    return _LOADING.search(name[:_LONGEST]) is not None


def is_reading(name: str) -> bool:
    """Tell whether a call of the operating system reads, sleeps or waits for data."""
    return _READS.match(name) is not None


def is_waiting(name: str) -> bool:
    """Tell whether a call of the operating system waits for another thread, or writes."""
    return _WAITS.match(name) is not None


def is_locked(name: str) -> bool:
    """Tell whether a call of the operating system waits until another thread has something."""
    return _LOCKS.match(name) is not None


def _words(text: str) -> list[str]:
    """Split a name into words; of a Python frame only its file and function tell anything."""
    if frame := _FRAME.search(text):
        text = f"{frame[1]} {frame[2]}"
    elif built_in := _BUILT_IN.match(text):
        text = built_in[1]
    return _WORD.findall(_CAMEL.sub(" ", text).lower())


_LONG_NS = 1_000_000
"""The shortest stretch that counts: below, it is the way to the next call."""
_READING = 0.05
"""The least part of it that goes into reading: a stray read in other work is less."""
_MIN_WAIT_SHARE = 0.5
"""The least part of it that goes into waiting for another thread, which then brings the data."""
_ACTING = (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.FILL, CallKind.SYNC)
_TO_GPU = ("Host-to-Device", "Host-to-Array")


def unnamed_input(
    trace: Trace, lanes: HostLanes, reading: Intervals, waiting: Intervals
) -> Intervals:
    """Give the stretches that end in a copy to the GPU and are spent on reading or waiting."""
    if not len(reading) and not len(waiting):
        return Intervals.empty()
    start, end = _before_copies(trace, lanes)
    long = end - start >= _LONG_NS
    start, end = start[long], end[long]
    read, waited = (coverage(spans, start, end) for spans in (reading, waiting))
    for_input = (read >= _READING * (end - start)) | (waited >= _MIN_WAIT_SHARE * (end - start))
    return Intervals.from_arrays(start[for_input], end[for_input])


def _before_copies(trace: Trace, lanes: HostLanes) -> tuple[Ints, Ints]:
    """Give the time before copies to the GPU since the lane last gave it work or waited for it."""
    calls = lanes.schedule.calls
    acting = lanes.order[np.isin(calls.kind[lanes.order], _ACTING)]
    before, after = acting[:-1], acting[1:]
    kept = (calls.lane[before] == calls.lane[after]) & np.isin(after, _copying(trace, lanes))
    before, after = before[kept], after[kept]
    start, end = calls.end_ns[before], calls.start_ns[after]
    return lanes.axis.at(calls.lane[after], start), lanes.axis.at(calls.lane[after], end)


def _copying(trace: Trace, lanes: HostLanes) -> Ints:
    """Give the calls that copy to the GPU."""
    ops = lanes.schedule.ops
    copies = np.flatnonzero((ops.kind == OpKind.COPY) & (ops.call >= 0))
    kinds = trace.table("copies", ["kind"])["kind"].gather(ops.row[copies])
    called: Ints = ops.call[copies[kinds.is_in(list(_TO_GPU)).to_numpy()]]
    return called
