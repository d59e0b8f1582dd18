"""Words that Nsight Compute itself uses: in names of metrics, labels of sections and opcodes."""

from __future__ import annotations

from functools import cache, lru_cache

from gpusight.sharing.profiler_words import made_of

_LONGEST = 1 << 16
"""Values of metrics that list others are long."""
_WORDS = """
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
    """Tell whether a text is one of the profiler's own, or a list of such."""
    return len(text) < _LONGEST and all(made_of(part, _words()) for part in text.split(","))


@cache
def _words() -> frozenset[str]:
    return frozenset(_WORDS.split())
