"""All ranks of a job: time and memory by number of ranks, beside HolisticTraceAnalysis.

    python -m benchmarks.ranks [--hta PYTHON] [--captures 64] [--megabytes 20]

Generates a training trace (`generate_torch`) for each rank and measures `gpusight ranks` on some
and on all of them, then `gpusight ranks merge` of 256 to 1,024 digests with clocks and delays of
their own. `--hta` is a Python that has HolisticTraceAnalysis: it gets the first eight traces too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.generate_torch import generate
from benchmarks.measure import Failed, run_once
from gpusight.analysis.ranks.rank_digest import RankDigest, decode_digests, encode_digests
from gpusight.rank_files import DigestRequest, digest_capture

GPUSIGHT = [sys.executable, "-m", "gpusight"]
FIRST = 8
DIGESTS = (256, 512, 1024)


def write_captures(folder: Path, ranks: int, megabytes: float) -> None:
    """Write a trace per rank; they differ in the number of the rank."""
    generate(megabytes, folder / "one.json")
    text = (folder / "one.json").read_bytes()
    for rank in range(ranks):
        about = f'"rank": {rank}, "world_size": {ranks}'.encode()
        own = text.replace(b'"rank": 0, "world_size": 8', about, 1)
        (folder / "all").mkdir(exist_ok=True)
        (folder / f"all/trace.rank{rank}.json.gz").write_bytes(gzip.compress(own, compresslevel=1))
    (folder / "one.json").unlink()


def write_for_hta(files: list[Path], folder: Path) -> None:
    """Copy traces with old names of NCCL kernels: HTA 0.5.0 fails where it finds none of these."""
    folder.mkdir()
    for file in files:
        text = gzip.decompress(file.read_bytes()).replace(b"ncclDevKernel_", b"ncclKernel_")
        (folder / file.name).write_bytes(gzip.compress(text, compresslevel=1))


def write_digests(folder: Path, template: RankDigest, ranks: int) -> None:
    """Write digests of a job of many ranks: each arrives at another moment, by another clock."""
    random = np.random.default_rng(22)
    table = template.collectives
    everybody = json.dumps(list(range(ranks)))
    keys = tuple(msgspec.structs.replace(key, group_ranks=everybody) for key in table.keys)
    late = random.gamma(2, 50_000, (ranks, len(table))).astype(np.int64)
    late -= late.max(axis=0)
    for rank in range(ranks):
        clock_ns = int(random.integers(-(10**7), 10**7))
        own = msgspec.structs.replace(
            table,
            keys=keys,
            start_ns=tuple((np.array(table.start_ns) + late[rank] + clock_ns).tolist()),
            end_ns=tuple((np.array(table.end_ns) + clock_ns).tolist()),
        )
        steps = tuple(
            msgspec.structs.replace(s, start_ns=s.start_ns + clock_ns, end_ns=s.end_ns + clock_ns)
            for s in template.steps
        )
        digest = msgspec.structs.replace(
            template, rank=rank, world_size=ranks, file=f"rank{rank}", collectives=own, steps=steps
        )
        (folder / f"rank{rank}.ranks").write_bytes(encode_digests([digest]))


def show(what: str, command: list[str]) -> None:
    taken = run_once(command)
    if isinstance(taken, Failed):
        print(f"| {what} | {taken.reason} | |")
        return
    print(f"| {what} | {taken.seconds:.2f} s | {taken.peak_bytes / 1e6:.0f} MB |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hta", help="a Python with HolisticTraceAnalysis")
    parser.add_argument("--captures", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_captures(folder, args.captures, args.megabytes)
        everything = sorted((folder / "all").iterdir(), key=lambda p: (len(p.name), p.name))
        size = sum(path.stat().st_size for path in everything) / len(everything)
        print(f"{len(everything)} traces of {args.megabytes:.0f} MB ({size / 1e6:.1f} MB packed)")
        for count in (FIRST, args.captures // 2, args.captures):
            files = [str(path) for path in everything[:count]]
            command = [*GPUSIGHT, "ranks", *files, "--no-cache", "--format", "json"]
            show(f"{count} traces: `ranks`", command)
        if args.hta:
            first = folder / "first"
            write_for_hta(everything[:FIRST], first)
            command = [*GPUSIGHT, "ranks", str(first), "--no-cache", "--format", "json"]
            script = str(Path(__file__).with_name("hta_ranks.py"))
            for _ in range(2):
                show(f"the same {FIRST} traces: `ranks`", command)
                show(f"the same {FIRST} traces: HTA", [args.hta, script, str(first)])
        [template] = digest_capture(DigestRequest(str(everything[0]), cache=False)).digests
        assert decode_digests(encode_digests([template])) == (template,)
        for count in DIGESTS:
            many = folder / f"digests{count}"
            many.mkdir()
            write_digests(many, template, count)
            command = [*GPUSIGHT, "ranks", "merge", str(many), "--format", "json"]
            show(f"{count} digests: `ranks merge`", command)


if __name__ == "__main__":
    main()
