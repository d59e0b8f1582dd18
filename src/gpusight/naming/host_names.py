"""What names of host ranges, operators and calls mean: input, compiling, waiting, a collective."""

from __future__ import annotations

import re
from functools import lru_cache

_MAX_NAME = 300
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
    r"|importlib|<frozen importlib|cudagraphify|capture_(?:begin|end)\b",
    re.IGNORECASE,
)
_LOADING = re.compile(r"(?:function|module) loading", re.IGNORECASE)
_READS = re.compile(
    r"^_*(?:(?:p|f|getdents|sp)?read(?:v|64|dir|ahead|link)?\d*|fgets|fgetc|getline|getdelim"
    r"|io_getevents)(?:_chk|_unlocked|_nocancel)?$"
)
_AWAITS = (
    r"futex|pthread_cond_(?:timed|clock)?wait|sem_(?:timed|clock)?wait|(?:clock_)?nanosleep|u?sleep"
    r"|recv(?:from|mmsg|msg)?|p?poll|p?select|epoll_p?wait\d*|accept4?"
)
_SLEEPS = re.compile(r"^_*(?:(?:clock_)?nanosleep|u?sleep)(?:_nocancel|64)*$")
_EVENT_LOOPS = re.compile(r"^_*(?:epoll_p?wait\d*|accept4?)(?:_nocancel|64)*$")
_LOCKS = re.compile(rf"^_*(?:{_AWAITS})(?:_chk|_nocancel|64)*$")
_WAITS = re.compile(
    rf"^_*(?:(?:{_AWAITS})(?:_chk|_nocancel|64)*$|pthread_(?:mutex_(?:timed)?lock|rwlock_\w*lock|join"
    r"|barrier_wait|spin_lock)|wait(?:pid|id|[34])?$|sched_yield|sigwait\w*|flock|system$|connect)"
)
_HOST_COLLECTIVES = re.compile(r"^(?:gloo|mpi|ucc):|^P?MPI_[A-Z]|(?:^|[^a-z])barrier(?:$|[^a-z])")
"""Collectives that run on the CPU, as PyTorch and NVTX name them, and barriers of processes."""


@lru_cache(maxsize=65_536)
def is_input(name: str) -> bool:
    """Return whether the name of a range, operator or Python call means input."""
    text = name[:_MAX_NAME]
    if _OPERATORS.match(text) or _FRAMEWORK.match(text):
        return False
    words = _words(text)
    if _BUILT_IN.match(text):
        return bool(words & _CERTAIN)
    if not words or words & _OTHERWISE:
        return False
    if words & _CERTAIN or words <= _ALONE or (words & _PLAIN and words <= _PLAIN | _FILLERS):
        return True
    actions, things = words & _ACTIONS, words & _THINGS
    if actions <= _LESS:
        things -= _MODELS
    arrivals = words & _REQUESTS and words & _ARRIVALS
    return bool((actions and things) or arrivals) or {"iterator", "next"} <= words


def is_compiling(name: str) -> bool:
    """Return whether a name means compiling or loading code."""
    return _COMPILING.search(name[:_MAX_NAME]) is not None


def is_loading(name: str) -> bool:
    """Return whether what the profiler counts as its overhead is the loading of code."""
    return _LOADING.search(name[:_MAX_NAME]) is not None


def is_reading(name: str) -> bool:
    """Return whether a call of the operating system reads."""
    return _READS.match(name) is not None


def is_waiting(name: str) -> bool:
    """Return whether a call of the operating system waits for another thread or process."""
    return _WAITS.match(name) is not None


def is_sleeping(name: str) -> bool:
    """Return whether a call of the operating system waits for nothing but time."""
    return _SLEEPS.match(name) is not None


def is_idling(name: str) -> bool:
    """Return whether a call of the operating system waits for time or for any request."""
    return is_sleeping(name) or _EVENT_LOOPS.match(name) is not None


def is_locked(name: str) -> bool:
    """Return whether a call of the operating system waits until someone else has something."""
    return _LOCKS.match(name) is not None


def is_collective(name: str) -> bool:
    """Return whether a name means a collective on the CPU: a wait for other processes."""
    return _HOST_COLLECTIVES.search(name[:_MAX_NAME]) is not None


def _words(text: str) -> set[str]:
    """Split a name into words; of a Python frame only its file and function count."""
    if frame := _FRAME.search(text):
        text = f"{frame[1]} {frame[2]}"
    elif built_in := _BUILT_IN.match(text):
        text = built_in[1]
    return set(_WORD.findall(_CAMEL.sub(" ", text).lower()))
