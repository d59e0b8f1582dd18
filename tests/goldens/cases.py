"""The golden cases: command lines and Python calls on the bundled captures.

The name of a case is the case itself: a command line, or several joined by ` && `, or a Python
expression over `gs` (the package) and `served` (what the server answers). `running` runs it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "src/gpusight/data", ROOT / "tests/data")
SUFFIXES = (".sqlite", ".nsys-rep", ".json.gz", ".ncu-repz", ".ncu-rep.xz", ".xplane.pb", ".pickle")

_TEXTS = ("table", "json", "csv", "markdown")
_CHARTS = (*_TEXTS, "svg", "html")
COMMANDS = {
    "info": _TEXTS,
    "summary": _TEXTS,
    "steps": _TEXTS,
    "ledger": _CHARTS,
    "utilization": _CHARTS,
    "timeline": _CHARTS,
    "kernels": _TEXTS,
    "ops": _TEXTS,
    "launches": _TEXTS,
    "ranges": _TEXTS,
    "api": _TEXTS,
    "copies": _TEXTS,
    "memory": _CHARTS,
    "flops": _TEXTS,
    "diagnose": (*_TEXTS, "html"),
    "explain": _TEXTS,
    "whatif --graph": _TEXTS,
    "questions": _TEXTS,
    "counters": _TEXTS,
    "roofline": _CHARTS,
    "occupancy": _CHARTS,
    "drill": _TEXTS,
    "stats": ("table", "csv", "column", "json", "tsv", "markdown"),
    "share --check": _TEXTS,
    "sql --tables": ("table", "json"),
}
"""Commands that take one capture, with their text formats; `RASTER` has the others."""

FILES = (
    "compare {0} {0} --format json",
    "baseline save {0} -o out/baseline.json && baseline show out/baseline.json",
    "share {0} -o out/copy --salt s --hash-names",
    "report {0} -o out/report.html",
    "export {0} --to json -o out/tables",
    "export {0} --to chrome -o out/timeline.json",
)
"""What else is run on every capture."""

NSYS, TORCH, NCU = "demo.sqlite", "demo.json.gz", "demo.ncu-repz"
FORWARD, RESNET = "gpt_small_forward.sqlite", "resnet18_infer.sqlite"
LINES = f"""
--version
{NSYS}
frobnicate {NSYS}
info missing.sqlite
info out
completion bash
mcp nothing
completion zsh
completion fish
help kernels
explain {NSYS} launch-bound
explain {NSYS} 99
explain launch-bound
kernels {NSYS} --full-names
kernels {NSYS} --device 7
kernels {NSYS} --in nothing
kernels {NSYS} --process 616
kernels {NSYS} --top 3
kernels {NSYS} --in step_2 --wide
kernels {NSYS} -o out/kernels.csv
kernels {NSYS} -o out/kernels.svg
kernels {NSYS} -o {NSYS}
kernels {NSYS} --format xml
kernels {NCU} --launches
kernels {NCU} --launches --format json
summary {NSYS} --in step_*
steps {NSYS} --warmup
steps {NSYS} --steps all
ledger {NSYS} --by-step
ledger {NSYS} --steps 2-3 --format json
ledger {NSYS} --steps x
ledger {NSYS} --window 0-50ms
ledger {NSYS} -o out/ledger.svg
hotspots {TORCH} --by stack --all-frames --top 12
hotspots {TORCH} --by range
hotspots {TORCH} -o out/flame.svg
hotspots {TORCH} -o out/flame.html
hotspots {TORCH} --of gpu --by module -o out/x.folded
hotspots {TORCH} --vs {TORCH} -o out/d.svg
hotspots {TORCH} -o out/x.speedscope.json
hotspots {NSYS} -o out/x.xyz
utilization {NSYS} --bins 10
timeline {NSYS} --tracks stream
timeline {NSYS} --tracks all --format json
timeline {NSYS} --tracks nothing
timeline {NSYS} --steps 2 --format svg
launches {NSYS} --kernel gemm --top 5
ops {TORCH} --by module
ops {TORCH} --by module --format json
ops {TORCH} --by shapes
ops {TORCH} --by function
flops {TORCH} --by op
flops {TORCH} --by family
flops {TORCH} --peak 100 --bandwidth 1000
memory {TORCH} --timeline
diagnose {NSYS} --details 0
diagnose {NSYS} --details
diagnose {NSYS} --list-rules
diagnose {NSYS} --steps 2-3
diagnose {NSYS} --rule launch-bound
diagnose {NSYS} --rule nothing
diagnose {NSYS} --fail-over 1%
diagnose {NSYS} --fail-over 1ms
diagnose {NSYS} {NCU}
diagnose {NSYS} {NCU} --format json
diagnose {TORCH} --details 0
diagnose {NCU} --details 0
diagnose {NCU} --lines
questions {TORCH} --compare {NSYS}
questions {TORCH} --model 8,12,512,64 --format json
counters {NCU} --list
counters {NCU} --source
counters {NCU} --instances
counters {NCU} --wide --metrics *dram*
counters {NCU} --metrics *dram* --format csv
counters {NCU} --launch 1
roofline {NCU} --launches
roofline {NCU} --gpu A100
roofline {NCU} --kernel triad --format json
occupancy --gpu H200 --block 256 --regs 64
occupancy --gpu H200 --block 256 --regs 64 --format json
occupancy --gpu H200 --block 256 --regs 64 --over registers
occupancy --gpu H200 --block 256 --regs 64 --over block --format svg
occupancy --gpu nothing --block 256
join {NSYS} {NCU}
join {NSYS} {NCU} --format json
join {RESNET} measured.csv
join {RESNET} measured.csv --format json
join {RESNET} measured.csv --format csv
join {RESNET} measured.csv --format markdown
diagnose {RESNET} measured.csv
diagnose {RESNET} measured.csv --format json
drill {RESNET} measured.csv
drill {RESNET} measured.csv --format json
report {RESNET} measured.csv -o out/report.html
counters measured.csv
kernels measured.csv --format json
drill {NSYS} {NCU}
drill {NSYS} {NCU} --format json
drill {NSYS} --top 2 --level full -- ./solver input.cfg
drill {NSYS} --top 2 -- ./missing
drill {TORCH} --kernel gemm
whatif {NSYS}
whatif {NSYS} --speedup matmul=2x
whatif {NSYS} --speedup kernel:*gemm*=2x --format json
whatif {NSYS} --remove sync
whatif {NSYS} --fuse elementwise
whatif {NSYS} --fuse optimizer
whatif {NSYS} --overlap copies
whatif dataload.sqlite --overlap copies
whatif {NSYS} --apply launch-bound --format json
whatif {NSYS} --precision bf16
whatif {TORCH} --fuse optimizer
sql --tables
sql --columns kernels
sql {NSYS} "select name, count(*) n from kernels group by name order by n desc, name"
sql {NSYS} "select nothing from kernels"
stats --list
stats {NSYS} -r nothing
stats {NSYS} -r cuda_gpu_kern_sum,nvtx_sum --format csv
stats {NSYS} -r cuda_gpu_trace,nvtx_gpu_proj_trace --format csv
stats {NSYS} -r cuda_kern_exec_sum,cuda_kern_exec_trace,cuda_api_trace --format csv
stats {NSYS} -r cuda_api_gpu_sum,nvtx_pushpop_sum,nvtx_gpu_proj_sum,nvtx_kern_sum --format json
stats {NSYS} {FORWARD} -o out
stats {NSYS} -r cuda_gpu_kern_sum,cuda_api_sum -f tsv,column --timeunit msec
stats {NSYS} -r cuda_gpu_sum,cuda_gpu_trace,nvtx_kern_sum
stats --help-reports ALL
stats --help-formats
share {NSYS} -o out/copy.sqlite
share {NSYS} -o out/copy.sqlite --salt s
share {NSYS} -o out/copy.sqlite --hash-names --salt s --format json
share {NSYS} -o out/copy --to parquet
share {NSYS} --check --strict
export {NSYS} --to csv --tables kernels -o out/kernels.csv
export {NSYS} --to csv -o out/tables
export {NSYS} --to chrome --in step_2 -o out/step.json
export {NSYS} --to json --tables nothing -o out/tables
export {NSYS} --to json --tables kernels -o out/k.json && kernels out/k.json
compare {FORWARD} {NSYS}
compare {FORWARD} {NSYS} --format json
compare {FORWARD} {NSYS} --format csv
compare {FORWARD} {NSYS} --format markdown
compare {FORWARD} {NSYS} --format html
compare {FORWARD} {NSYS} --format svg
ranks {NSYS}
ranks {NSYS} --format json
ranks {NSYS} --format csv
ranks {NSYS} --format markdown
ranks {NSYS} {TORCH}
ranks {NSYS} missing.sqlite
ranks {NCU}
ranks digest {NSYS}
ranks digest {NSYS} -o out/a.ranks && ranks merge out/a.ranks
compare {NSYS} {TORCH}
compare dataload.sqlite dataload.nsys-rep
compare {NSYS} {FORWARD} --vs {NSYS}
compare {NCU} {NCU}
gate {NSYS} --baseline {NSYS} --max step_time=+3%
gate {NSYS} --baseline {FORWARD} --max kernel_time=+3% --format json
gate {NSYS} --baseline {FORWARD} --max step_time=+3% --allow-changed kernels,steps
gate {NSYS} --max step_time=1ms --format markdown
gate {NSYS} --max step_time=1s --junit out/gate.xml --markdown out/gate.md
gate {NSYS} --max nothing=1
baseline save {NSYS} -o out/b.json && gate {NSYS} --baseline out/b.json --max step_time=+1%
baseline save {NSYS} -o out/b.json && baseline show out/b.json --format json
report {NSYS} {NCU} -o out/report.html --title Golden
report {NSYS} --compare {FORWARD} -o out/report.html
orion build --ncu {NCU} --model-type bert -o out/kernels && orion check out/kernels
orion build --ncu {NCU} --model-type vision -o - --columns 7
orion build --ncu {NCU} --model-type vision -o out/k --compat --intermediate out/steps
orion build --ncu {NCU} --nsys {NSYS} --model-type transformer -o out/k --durations nsys
orion build --ncu measured.csv --nsys {RESNET} --model-type vision -o out/k --durations nsys
orion plot --ncu {NCU} --nsys {NSYS}
orion plot --ncu measured.csv --nsys {RESNET} --gpu H200
orion plot --ncu measured.csv --nsys {RESNET} --gpu H200 --format json
orion plot --ncu measured.csv --nsys {RESNET} --gpu H200 -o out/plot.svg
record --dry-run --with nsys -- ./solver input.cfg
record --dry-run --with nsys --memory --gpu-metrics --format json -- ./solver input.cfg
record --dry-run --with nsys --range forward --stop -o out/run -- ./solver
record --dry-run --with nsys --delay 1 --duration 2 --graph-nodes -- ./solver
record --dry-run --with ncu --kernel *gemm* --launch-count 5 --level full -- ./solver
record --dry-run --with ncu --level detail --format json -- ./solver
record --dry-run --with nothing -- ./solver
record --dry-run --with nsys -- ./missing
demo
demo torch
demo ncu
demo --format json
""".strip().splitlines()
"""Command lines with other options, other files, and mistakes."""

HELP = (
    "doctor",
    "record",
    "info",
    "summary",
    "steps",
    "ledger",
    "hotspots",
    "utilization",
    "timeline",
    "kernels",
    "ops",
    "launches",
    "ranges",
    "api",
    "copies",
    "memory",
    "flops",
    "diagnose",
    "report",
    "serve",
    "whatif",
    "compare",
    "gate",
    "baseline",
    "questions",
    "counters",
    "roofline",
    "occupancy",
    "join",
    "drill",
    "orion",
    "stats",
    "sql",
    "export",
    "share",
    "demo",
    "cache",
)
"""Every command; those of `orion` and `baseline` have commands of their own."""
SUBCOMMANDS = ("baseline save", "baseline show", "orion build", "orion check", "orion plot")

RASTER = ("ledger", "utilization", "timeline", "memory", "roofline", "occupancy")
"""Commands that draw PNG and PDF files too."""

FUNCTIONS = (
    "info",
    "summary",
    "steps",
    "kernels",
    "ops",
    "launches",
    "ledger",
    "hotspots",
    "utilization",
    "timeline",
    "flops",
    "ranges",
    "api_calls",
    "copies",
    "memory",
    "counters",
    "occupancy",
    "roofline",
    "diagnose",
    "questions",
    "share_check",
    "drill",
)
"""Functions of the Python API that need no more than a capture."""
CALLS = f"""
gs.open("{NSYS}")
gs.open(["{NSYS}", "{NCU}"])
gs.open("missing.sqlite")
gs.kernels("{NCU}", every_launch=True)
gs.kernels("{NSYS}", within="step_2", device=0)
gs.counters("{NCU}", metrics="dram", form="wide")
gs.counters("{NCU}", form="source")
gs.explain("{NSYS}", 2)
gs.diagnose(["{NSYS}", "{NCU}"])
gs.join("{NSYS}", "{NCU}")
gs.join("{RESNET}", "measured.csv")
gs.occupancy_of("H200", 256, 64)
gs.orion_build("{NCU}", model_type="bert", out="out/kernels"), gs.orion_check("out/kernels")
gs.orion_plot("measured.csv", "{RESNET}", gpu="H200")
gs.report("{NSYS}")
gs.compare("{FORWARD}", "{NSYS}")
gs.baseline("{NSYS}", "out/baseline.json")
gs.gate("{NSYS}", baseline="{NSYS}", limits=dict(step_time="+3%"))
gs.drill("{RESNET}", reports=["measured.csv"])
gs.ranks("{NSYS}")
gs.rank_digest("{NSYS}", "out/a.ranks"), gs.ranks("out/a.ranks")
gs.ranks_whatif("{NSYS}")
gs.whatif("{NSYS}", graph=True)
gs.whatif("{NSYS}", speedup=dict(matmul=4), precision="bf16")
gs.sql("{NSYS}", "select count(*) n from kernels")
gs.stats("{NSYS}", "cuda_gpu_kern_sum")
gs.share("{NSYS}", "out/copy.sqlite", hash_names=True, salt="s")
gs.export("{NSYS}", "out/tables", to="json", tables=["kernels"])
gs.kernels("{NSYS}").save("out/kernels.md")
gs.summary("{NSYS}")["kernels"]
served("{NSYS}", "{NCU}")
served("{RESNET}", "measured.csv")
served("{TORCH}")
served("{FORWARD}", "{NSYS}")
served("jax_small.xplane.pb")
""".strip().splitlines()
"""Calls of functions that need more, and what the server answers about captures."""

IN_SUITE = (NSYS, TORCH, NCU)
"""Captures whose JSON is compared in the suite; of the first the tables too."""
SLOW = (
    *(f"gpusight {command} " for command in ("compare", "gate", "baseline", "report", "demo")),
    *(f"gs.{function}(" for function in ("compare", "gate", "baseline", "report", "diagnose")),
    "served(",
)
"""How cases begin that the suite leaves out for their time, except for `KEPT`."""
KEPT = (
    f"gpusight compare {FORWARD} {NSYS} --format json",
    f"gpusight gate {NSYS} --baseline {FORWARD} --max kernel_time=+3% --format json",
    f"gpusight baseline save {NSYS} -o out/b.json && baseline show out/b.json --format json",
    f"gpusight report {NSYS} {NCU} -o out/report.html --title Golden",
    "gpusight demo torch",
    f'served("{NSYS}", "{NCU}")',
)


def captures() -> list[Path]:
    """List the bundled captures."""
    return sorted(
        (f for folder in FOLDERS for f in folder.iterdir() if f.name.endswith(SUFFIXES)),
        key=lambda file: file.name,
    )


def cases() -> list[str]:
    """List every case."""
    names = [file.name for file in captures()]
    return [
        *(line for name in names for line in _of_capture(name)),
        *(f"gpusight {line}" for line in LINES),
        *(f"gpusight {command} --help".replace("  ", " ") for command in ("", *HELP, *SUBCOMMANDS)),
        *_raster(),
        *(f'gs.{function}("{name}")' for name in names for function in FUNCTIONS),
        *CALLS,
    ]


def _of_capture(name: str) -> list[str]:
    lines = []
    for command, formats in COMMANDS.items():
        word, *options = command.split()
        line = " ".join(("gpusight", word, name, *options, "--format"))
        lines += [f"{line} {form}" for form in formats]
    return [*lines, *(f"gpusight {line.format(name)}" for line in FILES)]


def _raster() -> list[str]:
    captures_of = {"memory": TORCH, "roofline": NCU, "occupancy": NCU}
    return [
        f"gpusight {command} {captures_of.get(command, NSYS)} -o out/chart.{form}"
        for command in RASTER
        for form in ("png", "pdf")
    ]


def cases_of_suite() -> list[str]:
    """List the cases that run in the suite: of main captures, and quick ones."""
    lines = [line for name in IN_SUITE for line in _of_capture(name) if "--format json" in line]
    lines += [line for line in _of_capture(NSYS) if line.endswith("--format table")]
    others = [*(f"gpusight {line}" for line in LINES), *CALLS]
    return [case for case in (*lines, *others) if case in KEPT or not case.startswith(SLOW)]
