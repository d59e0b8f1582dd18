"""What names of the host mean: input, reading, waiting, compiling."""

from __future__ import annotations

import pytest

from gpusight.naming.host_names import (
    is_compiling,
    is_idling,
    is_input,
    is_reading,
    is_waiting,
)


@pytest.mark.parametrize(
    "name",
    [
        "data",
        "Data 3",
        "data_loading",
        "DataLoader",
        "dataloader.next",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "torch/utils/data/dataloader.py(701): __next__",
        "load_batch",
        "next batch",
        "get_batch",
        "fetch",
        "wait_for_data",
        "## wait_for_training_batch ##",
        "Iterator::Next",
        "IteratorGetNextOp::DoCompute",
        "tokenize",
        "image_decode",
        "jpeg decode",
        "read_h5",
        "hdf5 load",
        "parquet",
        "collate_fn",
        "augment",
        "preprocess",
        "train_data",
        "input pipeline",
        "<built-in function sleep>",
        "recv_requests",
    ],
)
def test_input(name: str) -> None:
    assert is_input(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "metadata",
        "update",
        "spread",
        "thread_pool",
        "forward",
        "train_batch_3",
        "batch_norm",
        "aten::set_data",
        "aten::data",
        "DistributedDataParallel.forward",
        "data_parallel",
        "decode",
        "prefill",
        "detokenize",
        "sample_next_token",
        "prepare_inputs",
        "input_layernorm",
        "get_input_embeddings",
        "FSDP::pre_forward_prefetch",
        "## Request wait() ##",
        "## all2all_data:recat_permute_gen ##",
        "home/data/train.py(12): main",
        "torch/nn/modules/module.py(1773): _call_impl",
        "<built-in function next>",
        "<built-in method _get_tracing_state of pybind11_builtins.record object at 0x7f8c7df0a390>",
        "load_checkpoint",
        "vae.decode_image",
        "1234",
    ],
)
def test_no_input(name: str) -> None:
    assert not is_input(name)


def test_calls_of_the_operating_system() -> None:
    assert all(map(is_reading, ("read", "pread64", "fread", "__read_chk", "getline")))
    assert not any(map(is_reading, ("write", "nanosleep", "ioctl", "readahead_x", "open")))
    assert all(map(is_waiting, ("futex", "pthread_cond_timedwait", "sem_wait", "pthread_join")))
    assert all(map(is_waiting, ("nanosleep", "clock_nanosleep", "select", "epoll_pwait", "recv")))
    assert not any(map(is_waiting, ("read", "mmap", "ioctl")))


def test_compiling() -> None:
    assert is_compiling("_compile.compile_inner (dynamo_timed)")
    assert is_compiling("nvrtcCompileProgram")
    assert not is_compiling("Torch-Compiled Region: 0/0")


@pytest.mark.parametrize(
    ("name", "idles"),
    [("epoll_wait", True), ("__clock_nanosleep", True), ("accept4", True), ("poll", False),
     ("pthread_cond_wait", False), ("read", False)],
)  # fmt: skip
def test_who_waits_for_time_or_any_request(name: str, idles: bool) -> None:
    assert is_idling(name) is idles
