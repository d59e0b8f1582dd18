"""The words that hashed names may keep: what a name does, never whose it is.

Those of kernels are the words that `classify` itself looks for, so that a kernel stays in its
category. Those of ranges are what steps, phases, input and attention are told by; a test holds
them against the analyses, which this layer may not import.
"""

from __future__ import annotations

import re
from functools import cache

_ESCAPE = re.compile(r"\\[a-zA-Z]")
_LITERAL = re.compile(r"[a-z]{2,}")

_STEPS = """
    step steps iter iters iteration iterations batch batches mini micro minibatch minibatches
    microbatch microbatches trainstep trainsteps timestep timesteps train training eval evaluation
    val valid validation test infer inference generate generation generates generating decode
    decoding prefill predict prediction predicts forward forwards fwd fw pass passes frame frames
    cycle token tokens execute context model profiler profile optim optimizer optimizers optimiser
    sched scheduler schedulers scaler opt zero grad grads gradient gradients warm warming warmup up
    burn in burnin epoch start end begin init setup measure measured bench benchmark timed loop
"""
_PHASES = """
    backward backwards bwd bw back prop backprop backpropagation autograd engine evaluate function
    compute computes computing loss run clip clipping clipped lr weight weights param params
    parameter parameters update updates apply adam adamw adamax sgd lamb adagrad adafactor rmsprop
    ema all reduce reduces allreduce gather allgather scatter reducescatter to alltoall broadcast
    nccl rccl gloo mpi comm comms communication communicate sync synchronize synchronise exchange
    halo send recv receive ddp fsdp load loads loading loader loaders fetch fetches fetching fetcher
    get next wait waiting await prefetch prefetching prefetcher collate collator input inputs
    pipeline copy device host data type preprocess preprocessing preproc preprocessor process pre
    augment augmentation augmentations tokenize tokenizer tokenization tokenise tokeniser
    tokenisation with closure lightning module distributed parallel the of and for at on by from
    tensors tensor reducer bucket buckets
"""
_INPUT = """
    dataload dataloader dataloaders dataloading dataset datasets datapipe datapipes datamodule
    datafeed databatch minibatcher parquet tfrecord tfrecords webdataset lmdb ffcv dali hdf h5 h5py
    py imread imdecode fread getnext sleep nanosleep usleep read reading reader readers gen make
    build create iterator iterate dequeue queue feed feeder feeding ingest ingestion producer
    produce transform transforms prep prepare preparation sampler shuffle stream streaming download
    pull acquire receiving poll polling stage staging time transfer sample samples example examples
    image images jpeg jpg png video videos audio record records file files disk prompt prompts io
    corpus cpu gpu phase kv cache ptr dependency layout kernel proj projection checkpoint vae latent
    latents unet transformer decoder encoder recat request requests enumerate
"""
_PARTS = """
    scores score logits qk qkt similarity attention attn att query key keys dot product matmul mm
    bmm gemm multiply multiplication final value values probs weighted sum av pv softmax log linear
    qkv net network nn full whole total gpt llm mlp block blocks layer layers layernorm norm
    embedding embeddings head heads out relu gelu conv pool dropout mask masked residual
    self cross self hidden states scaled dot mean max min add mul div sub
"""
_FRAMEWORKS = """
    aten prim prims torch inductor triton cuda cudnn cublas nvtx jit dynamo compile compiled
    compiling compilation cached xla tsl pjit launch graph graphs replay capture call op ops id seq
    sizes memcpy memset malloc free synchronization loading overhead accumulate view reshape
    transpose permute expand item local scalar dense empty fill clone detach contiguous slice select
    index cat stack split chunk addmm baddbmm einsum addcmul addcdiv lerp sqrt rsqrt pow exp neg abs
    native math fused foreach h2d d2h d2d p2p a2a c10d
"""
_SYSTEM = """
    pthread mutex cond timedwait timedlock clock wait signal broadcast create join lock unlock
    trylock rwlock rdlock wrlock barrier spin sem post timed futex sched yield ioctl poll ppoll
    epoll pwait select pselect read readv pread write writev pwrite open open64 openat fopen fopen64
    fread fwrite fclose fflush fgets fgetc fputs fputc puts putc getc getline getdelim fcntl mmap
    mmap64 munmap mremap mprotect madvise malloc free close dup dup2 pipe pipe2 socket bind listen
    accept accept4 connect send sendto sendmsg recvfrom recvmsg recvmmsg shutdown fork vfork execve
    waitpid waitid sleep usleep nanosleep sync fsync fdatasync stat fstat lstat unlink rename mkdir
    opendir readdir readdir64 closedir getdents dlopen dlclose system popen pclose exit kill
    sigaction sigwait sigtimedwait backtrace eventfd inotify timerfd io getevents submit unknown
    tls allocation buffer flush instrumentation resource management profiling initialization
    cupti nvtx os runtime libraries finished started opengl plugins early
"""
_METRICS = """
    sms active throughput clock frequency gpc sys mhz gr compute graphics dram bandwidth bytes read
    write pcie rx tx nvlink sent received issue tensor fp16 fma warps unallocated pipe async
    copy engine engines hit rate l1 l2 tex lsu vertex pixel draw started count per cycle sm
    instructions avg register file elapsed queued in flight vec
"""
_CPP = """
    void int long short char bool float double half unsigned signed const constexpr auto size
    struct class template typename enum static inline anonymous namespace unnamed lambda operator
    instance clone true false nullptr std array tuple pair vector optional integral constant
    functor functors function kernel kernels impl launcher loader storer without offset calculator
    trivial policy traits config dim stride strided ptr params args index thread threads warp block
    grid cta shared smem shape tile sm arch align aligned vectorized vec unroll unrolled rowwise
    row col column major minor gamma beta cat batched array catted copy metadata contig template
    native at detail internal c10 cub thrust device radix sort scan onesweep histogram exclusive
    inclusive digit keys decoder accumulator acc list metadata depth op ops arity unary binary
    ternary nullary tensor tensors opaque type opmath cast dynamic casting input output scalar on
    other self bit bitwise logical compare eq ne lt le gt ge where clamp fill direct normal uniform
    sampling moments welford mean sum prod norm two one pointwise multi apply chunk adam math mode
    original amsgrad default epilogue prologue mainloop collective builder gemm mma universal
    identity cutlass cute ck mha ln fprop dgrad wgrad nchw nhwc ndhwc ncdhw krsc nn nt tn tt tnn
    ntn nnn nnt ttn tnt ntt stages stage warpsize warpgroup tensorop simt execute split kpar relu
    bias sliced small medium large interior cudnn engines precompiled cask xmma ampere hopper volta
    turing blackwell pascal maxwell kepler sgemm hgemm dgemm cgemm zgemm scudnn hcudnn cublas lt
    sn tst hsh bz coop nz bn bw fw tr inf fp bf tf f16 e4m3 e5m2 nd ldg flash fwd bwd dkdv dq seqk
    parallel causal local even splitkv paged ragged prefill decode batch single with cache combine
    kreduce nv base threadblock nhwckrsc nchwkcrs templates memory pitch warpgroupsize nocast
    segment
    wrapper func indexed off trt multiplicand congruous interpretation gmma access raked cunn assign
    arr info kind underscore len swizzle optimized regular operation optimal result channels source
    meta combination round style limits threshold floor specialized predicated fragment compacted
    tiled tiles atom problem coalesced iterator composed aligna alignc alignb sbtopk prephase
    merge state states rotary rope silu act gated topk gating moe marlin quant dequant
"""


@cache
def words() -> frozenset[str]:
    """Give all words, in lower case."""
    listed = " ".join(
        (_STEPS, _PHASES, _INPUT, _PARTS, _FRAMEWORKS, _SYSTEM, _METRICS, _CPP)
    ).split()
    return frozenset(listed) | _words_of_kernels()


def literals(pattern: str) -> frozenset[str]:
    """Take the words out of a regular expression."""
    return frozenset(_LITERAL.findall(_ESCAPE.sub(" ", pattern).lower()))


def _words_of_kernels() -> frozenset[str]:
    from gpusight.model import kernel_labels, kernel_parts, kernel_patterns, kernel_precision

    sources = [f"{row.pattern} {row.args}" for row in kernel_patterns.PATTERNS]
    for module in (kernel_labels, kernel_parts, kernel_precision):
        known = (value for value in vars(module).values() if isinstance(value, re.Pattern))
        sources += [pattern.pattern for pattern in known]
    return frozenset().union(*map(literals, sources))
