"""Words that profilers, frameworks and makers of hardware use themselves: they tell of nobody.

A text that is made of them alone may stay in a copy even where names are hashed.
"""

from __future__ import annotations

import re
from functools import cache

from gpusight.model.api_names import strip_api_version
from gpusight.sharing.vocabulary import words

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
_LONGEST = 500

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
_SAID = """
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
    """Tell whether a text is made of these words, marks and short counters alone."""
    if len(text) > _LONGEST or not text.isascii() or not text.isprintable():
        return False
    return all(run.lower() in known or _is_counted(run, known) for run in _RUN.findall(text))


def _is_counted(run: str, known: frozenset[str]) -> bool:
    match = _COUNTED.fullmatch(run)
    if match is None:
        return False
    parts = _CAMEL.findall(match["letters"])
    return all(part.lower() in known for part in parts)


def is_operator(name: str) -> bool:
    """Tell whether an operator's name is one of PyTorch's own."""
    return made_of(name, _operators())


def is_call(name: str) -> bool:
    """Tell whether a name is that of a call of CUDA or HIP."""
    return made_of(_DIMENSIONS.sub("", strip_api_version(name)), _calls())


def is_said(text: str) -> bool:
    """Tell whether a label is one that profilers write themselves."""
    return made_of(text, _said()) and not _DOTTED.search(text)


def is_group(text: str) -> bool:
    """Tell whether a group of processes is named by number, or by how a job is split."""
    return made_of(text, _groups()) and not _DOTTED.search(text)


def is_type(text: str) -> bool:
    """Tell whether a text names a type of PyTorch's."""
    return made_of(text, _types())


def described(text: str) -> str:
    """Keep of a description of hardware or system software what its makers call things."""
    line = text.strip().partition("\n")[0][:_LONGEST]
    return " ".join(piece for piece in line.split() if _is_made(piece))


def _is_made(piece: str) -> bool:
    return piece.isascii() and all(
        run.lower() in _machines() or _MODEL.fullmatch(run) for run in _RUN.findall(piece)
    )


@cache
def own_words() -> frozenset[str]:
    """Give the words of profilers and makers of hardware that may stand in any copy."""
    return _said() | _types() | _machines()


@cache
def _operators() -> frozenset[str]:
    return frozenset(_OPERATORS.split()) | words()


@cache
def _calls() -> frozenset[str]:
    return frozenset(_CALLS.split())


@cache
def _said() -> frozenset[str]:
    return frozenset(_SAID.split())


@cache
def _groups() -> frozenset[str]:
    return frozenset(_GROUPS.split())


@cache
def _types() -> frozenset[str]:
    return frozenset(_TYPES.split())


@cache
def _machines() -> frozenset[str]:
    return frozenset(_MACHINES.split())
