"""Words that may stay in a copy: of kernels, profilers, frameworks and hardware vendors."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from gpusight.readers.tables import strip_api_version

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
def kept_words() -> frozenset[str]:
    """Return all words of names that may stay, in lower case."""
    lists = (_STEPS, _PHASES, _INPUT, _PARTS, _FRAMEWORKS, _SYSTEM, _METRICS, _CPP)
    return frozenset(" ".join(lists).split()) | _words_of_kernels()


def _words_of_kernels() -> frozenset[str]:
    """Take the words out of the regular expressions that classify kernels."""
    from gpusight.naming import kernel_names, kernel_patterns, name_parts

    sources = [f"{row.pattern} {row.args}" for row in kernel_patterns.PATTERNS]
    for module in (kernel_names, name_parts):
        values = vars(module).values()
        sources += [value.pattern for value in values if isinstance(value, re.Pattern)]
    return frozenset(_LITERAL.findall(_ESCAPE.sub(" ", " ".join(sources)).lower()))


_RUN = re.compile(r"[A-Za-z0-9]+")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_COUNTED = re.compile(r"(?P<letters>[A-Za-z]*)(?P<digits>\d{0,4})")
_MODEL = re.compile(
    r"[A-Za-z]{0,2}\d{1,5}[A-Z]{0,2}|(?:MI|SXM|HBM|EPYC)\d{1,4}[A-Z]?|gfx\d{1,4}[a-z]?\d?"
    r"|\d{1,4}(?:[KMGT]B|[kmgt]b|[MG]Hz|th|st|nd|rd)|\d{1,2}g|\d{2}H\d"
)
"""Numbers of models and sizes of memory, such as `A100`, `i7` or `80GB`."""
_DIMENSIONS = re.compile(r"(?<=[a-z])[123]D(?![a-z])")
_DOTTED = re.compile(r"\d+(?:[.:-]\d+){2,}")
"""An address or a date, which is no counter."""
_MAX_TEXT_CHARS = 500

_OPERATORS = """
    abs absolute accumulate acos adamw adaptive add addbmm addcdiv addcmul addmm addmv addr
    addressing alias all allreduce amax amin and angle any aot aotdispatcher arange argmax
    argmin argsort as asin atan atan2 aten attention autocast autograd average avg backward
    baddbmm batch bernoulli bf16 bias bicubic bicubic2d bilinear bilinear2d binary bincount
    bitwise bmm bool broadcast bucketize bytecode c10d c2r cache call cast cat ceil channel
    channels char cholesky choose chunk clamp clone col2im column compatible compiled complex
    conj constant contiguous conv conv1d conv2d conv3d convolution copy cos cosh cosine count
    cpu cross ctc cuda cudnn cummax cummin cumprod cumsum data deg2rad dense dequantize detach
    diag diagonal diff digamma dim dims dispatcher dist distance div divide dot double dropout
    efficient eig einsum elu embedding empty engine entropy epilogue eq equal erf erfc erfinv
    evaluate exp exp2 expand expm1 exponential eye fake fft fill flash flatten flip float floor
    fmod foreach forward fp16 fp32 fp8 frac fresh frexp from full function fused fx gather ge
    gelu generator geometric get gloo glu grad graph greater grid group grouped gru gt
    hardshrink hardsigmoid hardswish hardtanh has histc hot hstack huber hypot i0 if ifft igamma
    im2col imag impl index indices inductor inf inner input instance int int4 int8 interleave
    interpolate inverse irfft is isclose isfinite isin isinf isnan item kl kron kthvalue l1
    layer layout le leaky lerp less lgamma lift like linalg linear local log log10 log1p log2
    logcumsumexp logical logit logits logspace logsumexp long lookup loss lstm lt lu masked
    matmul matrix max maximum mean median meshgrid min minimum miopen mish mkldnn mm mode
    movedim mps mse mul multi multihead multinomial multiply mv mx mxfp8 nan nanmean nansum
    narrow native nccl nd ndims ne nearest nearest1d nearest2d nearest3d neg negative nested new
    nll no nonzero norm normal normalized not num numel numpy offsets one ones only optimizer or
    ordered out outer overrideable pack packed pad padded pairwise pdist permute pin pinned
    pixel poisson polar pool pool1d pool2d pool3d positive pow pregraph prelu prim prims prod
    product profiler prologue put qr quantile quantize quantized r2c rad2deg rand randint randn
    random randperm range ravel real reciprocal record reduce reduction refine reflection region
    relu relu6 remainder renorm repeat replication reset reshape resize resolve result rfft rms
    rnn roll root rot90 round rrelu rsqrt rsub runtime safe same sample scalar scaled scatter
    searchsorted segment select selecting selu set sgn shallow shape short shuffle sigmoid sign
    signbit silu sin sinc sinh size sizes slice slogdet slow smooth softmax softplus softshrink
    solve sort sparse split sqrt square squeeze stack std step storage stream stride strided sub
    subtract sum svd swapaxes swapdims sym t take tan tanh tensor tensordot tensors thnn
    threshold tile to topk torch torchdynamo trace transpose transposed trapezoid triangular
    tril trilinear3d triplet triu true trunc type unbind unflatten unfold uniform unique unsafe
    unsqueeze upsample v2 v3 value values var varlen vdot vector version view vstack weight
    where with wrapper xlogy zero zeros
"""
_CALLS = """
    1d 2d 3d active add address advise alloc allocate apply arch array arrays as async at
    attribute attributes available batch bind blocks buffer by bytes c cache can capture
    capturing cluster clusters coherent config configure const context cooperative copy count
    create ctx cu cuda cudart current d d16 d2d d2h d32 d8 data debug dependencies destroy
    detach device devices disable double driver dto dtod dtoh dynamic edges elapsed enable end
    enter entry enumerate error event ex exchange exec execution explicit export ext external
    fat fatbin fence fill find flags for free from func function get global granularity graph
    graphs group gt h h2d handle heap hip host hto htod id impl import in info init initialize
    instantiate instantiation interop ipc is kernel kernels last launch layer lib library limit
    limits list load loaded loading local location luid malloc managed map mapped max mem memcpy
    memory memset min mipmapped mode module multi multicast multiprocessor name node nodes
    object occupancy of on open operation optional options organization p param parameter
    parameters params pci peek peer peers per pitch point pointer pool pop posix potential
    prefetch primary priority proc process profiler programmatic properties property ptr ptx
    push query range read ready record refcount reference register release remove requirements
    reserve reset resource retain runtime s save scope set shareable shared signal size spec
    start state static status stop stream string surface symbol sync synchronize template
    texture thread threads time to toggle topology trim type unified unload unmap unregister
    update upload usage user uuid v2 v3 value version view virtual vmm wait warm with write x y
    z
"""
_MACHINES = """
    a aarch64 ac active ada agx ai alma almalinux amazon amd amd64 ampere android apple arch arm
    arm64 armv8 armv9 athlon ati b blackwell bronze build c cbl cdna centos cmp compute core
    cores cortex cpu cuda d darwin debian design desktop device dgx dgxs display driver dual e
    edition eight enterprise epyc fedora fiji fx g gb gcd geforce gen generation ghz gnu gold
    gpu grace graphics grid gtx h hat hbm hbm2 hbm2e hbm3 hbm3e hexa hopper host i3 i5 i7 i9
    instinct intel jetson k kepler l laptop linux lovelace lts m macos mariner max max-q maxwell
    mb mhz microsoft mig mobile nano navi nd neoverse nsight nvgpu nvidia nvl nvlink nx oam octa
    opensuse opteron oracle orin p pascal pcie perfworks platinum ppc64 ppc64le pro processor
    professional public q qnx quad quadro qualcomm r radeon rd rdna red release rev rocky rtx rx
    ryzen s server silver six spark sramecc st station super superchip suse sxm t target tb
    tegra tesla th thor threadripper ti titan tm turing ubuntu ultra v vega version vf vgpu
    volta w windows with workstation wsl wsl2 x x64 x86 xavier xeon xnack xp xt xtx
"""
_TYPES = """
    bfloat bfloat16 bool byte c10 char complex complexdouble complexfloat complexhalf device
    dict double e2m1fn e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu float float16 float32 float4
    float64 float8 generator generic genericlist half int int16 int32 int64 int8 layout list
    long nested none nullable number object optional qint32 qint8 quint8 scalar scalarlist short
    signed stream string tensor tensorlist tuple uint16 uint32 uint64 uint8 unsigned x2
"""
_PROFILER_LABELS = """
    ac2g activity all allgather allreduce alltoall alltoallv array async atoa atod atoh autograd
    autotuner barrier base batch broadcast buffer cleanup coalesced command context copy cp cpp
    cpu cuda cupti custom dataloader ddp default device dispatch dp dtoa dtod dtoh e end ep
    event fake fill flush forced full function functions fwdbwd g gather gloo gpu hccl hip host
    htoa htod htoh inductor instrumentation into irecv isend iteration kernel launch lazy
    loading main managed marker memcpy memory memset mesh module mpi ms nccl ns oop overhead p
    pageable peer pg pid pin pinned pp profiler pt ptop python python2 python3 pytorch rccl
    record recv reduce reducer reducescatter registered request resource runtime scatter scope
    send sp spans start stream sum sync synchronization synchronize t task tensor test thread to
    tp trace traces trigger triton ucc undefined unified unknown user wait window worker xccl
"""
_GROUPS = """
    and attention context cp data ddp default dp dualpipe edp embedding ep etp expert fsdp group
    groups hierarchical hsdp inter intra mesh model moe optimizer parallel partial pg pipeline
    position pp replica replicas replicate sequence shard sharded shards sp tensor tp undefined with
    world
"""


def made_of(text: str, known: frozenset[str]) -> bool:
    """Return whether a text is made of these words, marks and short counters alone."""
    if len(text) > _MAX_TEXT_CHARS or not text.isascii() or not text.isprintable():
        return False
    return all(run.lower() in known or _is_counted(run, known) for run in _RUN.findall(text))


def _is_counted(run: str, known: frozenset[str]) -> bool:
    match = _COUNTED.fullmatch(run)
    if match is None:
        return False
    parts = _CAMEL.findall(match["letters"])
    return all(part.lower() in known for part in parts)


def is_operator(name: str) -> bool:
    """Return whether an operator's name is one of PyTorch's own."""
    return made_of(name, _operator_words())


@cache
def _operator_words() -> frozenset[str]:
    return _words(_OPERATORS) | kept_words()


def is_call(name: str) -> bool:
    """Return whether a name is that of a call of CUDA or HIP."""
    return made_of(_DIMENSIONS.sub("", strip_api_version(name)), _words(_CALLS))


def is_profiler_label(text: str) -> bool:
    """Return whether a label is one that profilers write themselves."""
    return made_of(text, _words(_PROFILER_LABELS)) and not _DOTTED.search(text)


def is_group(text: str) -> bool:
    """Return whether a process group is named by number, or by how a job is split."""
    return made_of(text, _words(_GROUPS)) and not _DOTTED.search(text)


def is_type(text: str) -> bool:
    """Return whether a text names a type of PyTorch's."""
    return made_of(text, _words(_TYPES))


def described(text: str) -> str:
    """Keep the vendors' words of a description of hardware or system software."""
    line = text.strip().partition("\n")[0][:_MAX_TEXT_CHARS]
    known = _words(_MACHINES)
    return " ".join(
        word
        for word in line.split()
        if word.isascii()
        and all(run.lower() in known or _MODEL.fullmatch(run) for run in _RUN.findall(word))
    )


@cache
def vendor_words() -> frozenset[str]:
    """Return the words of profilers and hardware vendors that may stand in any copy."""
    return _words(_PROFILER_LABELS) | _words(_TYPES) | _words(_MACHINES)


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_METRIC_CHARS = 1 << 16
"""Values of metrics that list others are long."""
_METRIC_WORDS = """
    128b 16b 32b 5d 64b 64x128x8 64x64x8 8b a a1t0 access accessible accessing achieved acqbulk
    active activity actual add address addressing adu affinity aggregated alignment all alloc
    allocated alternate alu aluheavy analysis and any aperture architecture arithmetic array
    arrive arv as async atom atomg atomic atoms attribute average avg b b1 b2r backed balanced
    bandwidth bank banks bar barrier barriers based basic bf16 bfly bgmma bit block blocking
    blocks bmma bmov board bpt bra branch branches break breakdown brev brx bssy bsync buf
    buffer bus busy by bypass byte bytes c c2clink cache cachepreferequal cachepreferl1
    cacheprefernone cacheprefershared call can capability cas case categories category cbc cbu
    cc ccc cctl cctll cctlt cdp ce centric cgaerrbar cgas channel chart charts chip clc clear
    clock cluster clusters cmd command compound compression comptag compute
    computeworkloadanalysis computing concurrent confidential config configuration conflict
    conflicts connected constant contains context control conversion cooperative core count
    counters cpu cs cs2r cta ctapool ctas ctc ctxsw cuda cudafunccacheprefernone cycle cycles d
    dadd data datapath dcc dealloc decomp default defer deferred demote depbar depth derivative
    derived descriptor destination detailed dev dev0id dev0type dev1id dev1type device dfma dim
    direct disabled dispatch display distribution divergent dma dmma dmul domain dot double down
    downstream dp drain dram dramc driver dropped dsetp dshared dst due duration dynamic e each
    ecc efficiency elapsed elect eligible enabled end endcollective engine eq equal errbar event
    evict eviction ex ex2 excessive exch exec executed execution exit explicit export ext f f2f
    f2i f32 f64 fabric fadd fb fbp fbpa fbsp fchk fe fence ffma file fill first flo floating
    flop flush fma fmaheavy fmalite fmnmx fmul for fp fp16 fp32 fp4 fp6 fp64 fp8 frequency frnd
    from fsel fsetp fswzadd ftz full func function gather gb100 gb11x gb20x gcc gcomp ge gen
    generic geu gh100 global gmem gmma gpc gpu gr granted graph graphics graphs green grid group
    groups gt gtu hadd hadd2 half handle heavy height hfma hfma2 hgmma hi hierarchical
    hierarchicaldoublerooflinechart hierarchicalhalfrooflinechart
    hierarchicalsinglerooflinechart hierarchicaltensorrooflinechart hit hitprop hits hmma hmnmx2
    hmul hmul2 host hotspot hset2 hsetp2 hub i2f i2fp i2i iabs iadd iadd3 icc id idc ideal ids
    idx igmma ilc im2col imad imc imma imnmx impact implementation in index info input inst
    inst0 instruction instructions instructionstats int int1 int4 int8 integer integrated
    intensity internal interval ipa ipc is isetp issue issued ivall jmp jmx kernel kernels khz
    kill kmt l l1 l1tex l1tex2xbar l2 l2s last latency launch launchable launched launchstats
    layered layers ld ldc ldg ldgdepbar ldgsts ldl lds ldsm le lea leu level levels lg lgds
    light limit limits line linear link load loads local location locations logical long lookup
    lop3 lrc lsu lsuin lt ltc128b ltcfabric lts lts2lrc lts2xbar lut m m88 major managed
    management map mapping mask math matrix max maximum mc mcc mem membar memdesc memory
    memoryworkloadanalysis mempool merged metric metrics min minor mio mio2rf mipmapped misc
    miscellaneous miss missed misses missprop mix mma mode model modifier more most mov move
    movement mps mufu multi multicast multiprocessor n na name names nan nanosleep native ne neu
    no nodec noinc none nop nor normal not ntz num numa numaaffinity nvlink nvlrx nvltx nvswitch
    nway occupancy of off on one op opcode opcodes operation operations ops optin options or
    ordering other output over overall overhead overlap overview p2r page pageable pass passes
    path pci pcie pcs pcsamp pct peak peer per perf performance perfworks persisting phasechk
    physical pipe pipes pitch plop3 pm pmsampler pmsampling point pointer pointers policies
    policy policydefault policyloadbalancing policyspread pools popc ports posix potential pq
    precision pred predicate predicated preemption preexit prefer preferred present priorities
    prmt profiler properties psetp qgmma queue r r2b r2p r2ur ram rate ratio rcp rdma read reads
    realtime reasons red redas redg regex register registered registers rel remote replayer req
    request requested requests reserved resolving ret reuse revision rm rn roofline
    rooflinechart rooflines rp rsq rx s s2r s2ur s32 s64 sample samples sampling sass sat sb sc
    scheduler schedulers schedulerstats scheduling scoreboard sec second section0 sector sectors
    sel selected selective session shader shared shf shfl shl short simplify simt single size
    sleep sleeping slots sm sm2tex sm80 sm90 smem sms smsp sol source sourcecounters space
    sparse sparsity speed speedoflight spilling spread src srcnode srcunit st stack stage stall
    stalled stalls start stas state states static statistics stats stg stl store stores stream
    strong sts stsm sub subpipe success suld sum supported surface surface1d surface2d surface3d
    surfacecubemap sust sustained sx32 sync syncs sys sysl2 syslts syslts2xbar sysmem system t
    table tables tag targets tc tcc temp tensor tex tex2d texin texture texture1d texture2d
    texture3d texturecubemap tf32 that the theoretical thread threads throttle throughput time
    timeout timestamp tld tma tmain tmem to topology total tpc tpcs trans64 triage triagea
    triageac triagecompute triagescg true trunc try trywait tx txq type types u u16 u32 u64 u8
    ubrev ucgabar uclea uflo uiadd3 uimad uisetp uldc ulea ulop3 umov unexecuted unified uniform
    unit units unknown up up2ur uplop3 upopc uprmt usage use usel user uses usetmaxreg usetshmsz
    ushf utchmma utcimma utcomma utcqmma utilization utmacmdflush utmaldg utmared utmastg
    uuiddev0 uuiddev1 v1 v2 vabsdiff value varying vgpu viadd viaddmnmx view vimnmx virtual vmm
    vote voteu wait warmup warp warpgroup warps warpstatestats warpsync wavefront wavefronts
    waves way when wide width win32 window wite with workid workids workload
    workloaddistribution wrap write writeback writes x x2 x4 x512 xbar xbar2gcc xbar2gpc
    xbar2l1tex xbar2lts xbar2syslts xu y yes yield z zero
"""


@lru_cache(maxsize=1 << 14)
def is_metric_text(text: str) -> bool:
    """Return whether a text is one of the profiler's own, or a list of such."""
    return len(text) < _MAX_METRIC_CHARS and all(
        made_of(part, _words(_METRIC_WORDS)) for part in text.split(",")
    )
