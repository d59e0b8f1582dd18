"""Which collective a name means."""

from __future__ import annotations

import pytest

from gpusight.naming.collective_names import (
    KINDS,
    async_edge,
    collective_kind,
    framework_call,
    host_collective_kind,
    library_call_kind,
    nccl_call_kind,
)

KERNELS = {
    # NCCL 2.4 to 2.18: the algorithm before `Kernel`, then behind the collective
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclAllReduceTreeLLKernel_sum_f16(ncclColl)": "all_reduce",
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)": "broadcast",
    "ncclReduceScatterRingLLKernel_sum_f32(ncclColl)": "reduce_scatter",
    "ncclAllGatherRingLLKernel_copy_i8(ncclColl)": "all_gather",
    "ncclReduceRingLLKernel_sum_f32(ncclColl)": "reduce",
    "ncclSendRecvKernel_copy_i8(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)": "send_recv",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)": "all_gather",
    # NCCL 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": "all_gather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": "send_recv",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096>)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)": "reduce",
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    # in namespaces without a name, as in PyTorch's symmetric memory
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(T*)": "all_reduce",
    "void at::native::(anonymous namespace)::one_shot_all_reduce_kernel<float>()": "all_reduce",
    # experts: tokens to their ranks and back
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "all_to_all",
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>(int4*)": "all_to_all",
    "void deep_ep::internode_ll::dispatch<true, 3, 10>(void*)": "all_to_all",
    "mori::moe::EpCombineIntraNodeKernel<float>(EpArgs)": "all_to_all",
    # user buffers of Transformer Engine
    "void userbuffers_fp16_sum_inplace_gpu_rr<4>(int)": "all_reduce",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int)": "reduce_scatter",
    "void userbuffers_fp16_sum_inplace_gpu_mc_ag<4>(int)": "all_gather",
    # others
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)": "all_reduce",
    "all-reduce.17": "all_reduce",
    "collective-permute.3": "permute",
    "_allgather_base": "all_gather",
    "allreduce_coalesced": "all_reduce",
    "all_to_allv": "all_to_all",
    "_reduce_scatter_base": "reduce_scatter",
}


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_kernels_and_operations_of_every_version_have_a_kind(name: str, kind: str) -> None:
    assert collective_kind(name) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096>)",
        "void deep_ep::intranode::notify_dispatch<8>(int const*)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    ],
)
def test_kernels_without_a_kind(name: str) -> None:
    assert collective_kind(name) is None


def test_arguments_do_not_decide_the_kind() -> None:
    assert collective_kind("ncclDevKernel_Generic(allReduceArgs)") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclAllReduce", "all_reduce"),
        ("ncclAllToAll", "all_to_all"),
        ("ncclAlltoAll", "all_to_all"),
        ("ncclAllToAllv", "all_to_all"),
        ("ncclSend", "send"),
        ("ncclGroupEnd", None),
        ("ncclCommInitRank", None),
        ("allreduce", None),
    ],
)
def test_nvtx_ranges_of_nccl(name: str, kind: str | None) -> None:
    assert nccl_call_kind(name) == kind


def test_ranges_of_process_groups_name_their_library() -> None:
    assert framework_call("nccl:all_to_all, op_id = 993824") == ("nccl", "all_to_all")
    assert framework_call("nccl:_all_gather_base") == ("nccl", "all_gather")
    assert framework_call("all_reduce") is None
    assert host_collective_kind("gloo:all_reduce") == "all_reduce"
    assert host_collective_kind("nccl:all_reduce") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MPI_Allreduce", "all_reduce"),
        ("PMPI_Iallgather", "all_gather"),
        ("MPI_Barrier", "barrier"),
        ("MPI_Isend", "send"),
        ("MPI_Alltoallv", "all_to_all"),
        ("MPI_Waitall", None),
        ("MPI_Send_init", None),
        ("MPI_Comm_rank", None),
        ("ucp_tag_send_nbx", "send"),
        ("ucp_tag_recv_nb", "recv"),
        ("ucp_worker_progress", None),
    ],
)
def test_calls_of_mpi_and_ucx(name: str, kind: str | None) -> None:
    assert library_call_kind(name) == kind


def test_asynchronous_pairs_of_xla() -> None:
    assert async_edge("all-reduce-start.3") == ("all_reduce", "start", ".3")
    assert async_edge("all-gather-done") == ("all_gather", "done", "")
    assert async_edge("all-reduce.3") is None
    assert async_edge("copy-start.1") is None
