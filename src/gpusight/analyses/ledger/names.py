"""Names that speak of input: reading, waiting for and preparing data.

Names are split into words first (`DataLoaderIter.__next__` is `data loader iter next`), and only
whole words count, so that `metadata`, `update` or `spread` say nothing. A name speaks of input

- when one of its words can mean nothing else (`dataset`, `tokenize`, `parquet`, `sleep`);
- when it says what is done to which data (`load batch`, `next sample`, `wait for data`);
- when it is nothing but a word for data (`data`, `input 3`, `train data`).

`decode` alone is what language models do, `data parallel` and `prefetch` alone are about training:
those do not count. What a name alone cannot tell, such as whether `batch` is a whole step, is
decided by what was launched inside; see `layers.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
