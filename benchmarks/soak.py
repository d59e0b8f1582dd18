"""Soak test of `gpusight serve`: random requests for an hour, no leak, no wrong answer.

    python -m benchmarks.soak --minutes 60 --clients 4 --kernels 1000000 -o soak.json
    python -m benchmarks.soak --minutes 2 --kernels 20000

Serves two generated captures (K kernels and a quarter of that, so that there is a comparison) as a
real process. Clients send random valid requests of every route, invalid ones, and connections that
are slow, cut or silent. Memory, file descriptors and threads of the server are sampled each second.
Rounds during the run replay a sample of the requests in a fresh server process, and the last one
replays all of them: status, content type and body must be equal, byte by byte.

Exit code 1 if memory or descriptors grow, a 5xx or an unexpected status was sent, an answer
differs, or the server wrote to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.generate import generate
from benchmarks.soak_requests import Abuse, Requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_GROWTH = 0.05
"""Growth of the median memory from the second to the last quarter of the run that is allowed."""
MIN_GROWTH_BYTES = 16 << 20
"""What an allocator may keep at any time: growth below this is no leak that can be measured."""
EXTRA_THREADS = 4
"""Worker threads of the server's pool, which end when idle."""
ROUND_REQUESTS = 500
"""Requests that a round during the run replays."""
ABUSE_INTERVAL_S = 1.0
TIMEOUT_S = 120.0
REST_S = 20.0
"""How long the server may take to close connections of clients that are gone."""
MAX_REPORTED = 10
PROGRESS_SAMPLES = 60


class SoakError(Exception):
    """The server did not start, or is gone."""


FAILURES = (SoakError, OSError, http.client.HTTPException, ValueError)
"""What a client sees of a server that is broken."""


@dataclass(frozen=True)
class Answer:
    """What came back, short enough to remember a hundred thousand of them."""

    status: int
    content_type: str
    digest: str


@dataclass(frozen=True)
class Sample:
    """The server at one moment."""

    seconds: float
    rss_bytes: int
    anonymous_bytes: int
    descriptors: int
    threads: int


@dataclass
class Server:
    """A running `gpusight serve`."""

    url: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def root(self) -> str:
        return urlsplit(self.url).path

    def sample(self, seconds: float) -> Sample:
        """Read /proc."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        values = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        return Sample(
            seconds,
            int(values["VmRSS"][0]) * 1024,
            int(values["RssAnon"][0]) * 1024,
            len(os.listdir(f"/proc/{self.pid}/fd")),  # noqa: PTH208 - names only, many times
            int(values["Threads"][0]),
        )


@contextmanager
def serving(captures: Sequence[Path], cache: Path, log: Path) -> Iterator[Server]:
    """Run the command until the end of the block; `log` gets its standard error."""
    command = [sys.executable, "-m", "gpusight", "serve", *map(str, captures), "--quiet"]
    environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(cache)}
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            if address is None:
                raise SoakError(f"gpusight serve printed no address: {log.read_text()}")
            yield Server(address[0], process.pid)
        finally:
            process.terminate()


class Client:
    """A keep-alive connection that reconnects when the server closed it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection(*server.address, timeout=TIMEOUT_S)

    def get(self, path: str) -> tuple[Answer, bytes]:
        """Send a request for a path below the server's root."""
        try:
            return self._get(path)
        except (http.client.RemoteDisconnected, ConnectionError):
            # An idle connection is closed after some seconds; a new one has to be answered.
            self._connection.close()
            return self._get(path)

    def _get(self, path: str) -> tuple[Answer, bytes]:
        self._connection.request("GET", self._server.root + path)
        with self._connection.getresponse() as response:
            body = response.read()
            kind = response.headers["content-type"] or ""
            return Answer(response.status, kind, hashlib.sha256(body).hexdigest()[:32]), body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def close(self) -> None:
        self._connection.close()


def wait_until_ready(server: Server) -> None:
    """Wait until everything is computed: from then on answers no longer change."""
    client = Client(server)
    until = time.monotonic() + 600
    paths = ["api/captures", "api/compare"]
    paths += [f"api/captures/{n}/{what}" for n in range(2) for what in ("ledger", "findings")]
    while any(re.search(rb'"state":"(reading|computing)"', client.get(p)[1]) for p in paths):
        if time.monotonic() > until:
            raise SoakError("the captures were not ready after ten minutes")
        time.sleep(0.05)
    client.close()


@dataclass(frozen=True)
class Plan:
    """What to run."""

    captures: Sequence[Path]
    folder: Path
    seconds: float
    clients: int = 4
    rate: float = 40.0
    rounds: int = 3
    warm_up_s: float = 30.0


@dataclass
class Record:
    """Every answer of a run, shared by its clients."""

    answers: dict[str, Answer] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    latencies_ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    abuses: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, path: str, answer: Answer, seconds: float, *, valid: bool) -> None:
        """Remember an answer; the same request must get the same one again."""
        with self.lock:
            self.requests[kind] += 1
            self.statuses[answer.status] += 1
            self.latencies_ms[kind].append(seconds * 1e3)
            expected = answer.status == 200 if valid else 400 <= answer.status < 500
            if not expected:
                self.faults.append(f"status {answer.status}: {path}")
            if self.answers.setdefault(path, answer) != answer:
                self.faults.append(f"two answers to one request: {path}")

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def sampled(self, chance: random.Random, most: int) -> dict[str, Answer]:
        with self.lock:
            paths = list(self.answers)
            chosen = paths if len(paths) <= most else chance.sample(paths, most)
            return {path: self.answers[path] for path in chosen}


class Load:
    """Clients in threads, at a bounded rate, until stopped.

    Answers are recorded once they can no longer change: `compared` says whether that is so.
    """

    def __init__(self, server: Server, record: Record, plan: Plan, *, compared: bool) -> None:
        self._server, self._record, self._compared = server, record, compared
        self._pause_s = plan.clients / plan.rate
        self._stop = threading.Event()
        work = [self._send] * plan.clients + [self._abuse]
        self._threads = [
            threading.Thread(target=self._guarded, args=(each, seed))
            for seed, each in enumerate(work)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Any, seed: int) -> None:
        try:
            work(random.Random(f"{seed} {self._compared}"))
        except FAILURES as error:
            self._record.fault(f"a client failed: {error!r}")

    def _send(self, chance: random.Random) -> None:
        client = Client(self._server)
        requests = Requests(chance, client.json)
        due = time.monotonic()
        while not self._stop.is_set():
            kind, path, valid = requests.next()
            began = time.perf_counter()
            answer, body = client.get(path)
            if self._compared:
                self._record.add(kind, path, answer, time.perf_counter() - began, valid=valid)
            elif answer.status >= 500:
                self._record.fault(f"status {answer.status} while starting: {path}")
            requests.learn(kind, body)
            if chance.random() < 0.02:
                client.close()  # the next request opens a new connection
            due = max(due + chance.expovariate(1 / self._pause_s), time.monotonic() - 1)
            self._stop.wait(max(0.0, due - time.monotonic()))
        client.close()

    def _abuse(self, chance: random.Random) -> None:
        abuse = Abuse(chance, self._server.address, self._server.root)
        while not self._stop.wait(ABUSE_INTERVAL_S):
            self._record.abuses[abuse.next()] += 1
        abuse.close()


def at_rest(server: Server, expected: Sample | None = None) -> Sample:
    """Sample the server once its descriptors are as few as expected, or stay what they are."""
    until = time.monotonic() + (REST_S if expected else 1.0)
    least = server.sample(0)
    while time.monotonic() < until:
        if expected and is_flat(expected, least):
            break
        time.sleep(0.1)
        now = server.sample(0)
        least = min(least, now, key=lambda sample: (sample.descriptors, sample.threads))
    return least


def is_flat(before: Sample, after: Sample) -> bool:
    return (
        after.descriptors <= before.descriptors and after.threads <= before.threads + EXTRA_THREADS
    )


def replay(
    captures: Sequence[Path], folder: Path, answers: dict[str, Answer], name: str
) -> list[str]:
    """Send requests to a fresh process with an empty cache; returns what differs."""
    try:
        with serving(captures, folder / f"cache-{name}", folder / f"{name}.log") as server:
            wait_until_ready(server)
            client = Client(server)
            faults = [
                f"a fresh process ({name}) answers {now.status} {now.digest}, "
                f"not {answer.status} {answer.digest}: {path}"
                for path, answer in answers.items()
                if (now := client.get(path)[0]) != answer
            ]
            client.close()
            return faults
    except FAILURES as error:
        return [f"replay in a fresh process ({name}) failed: {error!r}"]


def quarter_medians(values: Sequence[int]) -> tuple[float, float]:
    """Give the medians of the second and of the last quarter of a run."""
    quarter = max(1, len(values) // 4)
    second, last = values[quarter : 2 * quarter] or values[:1], values[-quarter:]
    return sorted(second)[len(second) // 2], sorted(last)[len(last) // 2]


def growth_faults(samples: Sequence[Sample], before: Sample, after: Sample) -> list[str]:
    """Compare the samples of a run with each other, and the server at rest before and after it."""
    faults = []
    for name in ("rss_bytes", "anonymous_bytes"):
        second, last = quarter_medians([getattr(sample, name) for sample in samples])
        if last - second > max(MAX_GROWTH * second, MIN_GROWTH_BYTES):
            faults.append(f"{name} grew from {second / 1e6:,.1f} MB to {last / 1e6:,.1f} MB")
    if not is_flat(before, after):
        faults.append(
            f"at rest {before.descriptors} descriptors and {before.threads} threads became "
            f"{after.descriptors} and {after.threads}"
        )
    return faults


def soak(plan: Plan) -> dict[str, Any]:
    """Run it; returns what was measured, with `faults` empty where all is well."""
    record = Record()
    with serving(plan.captures, plan.folder / "cache", plan.folder / "serve.log") as server:
        with Load(server, record, plan, compared=False):  # while the captures are still read
            wait_until_ready(server)
            time.sleep(plan.warm_up_s)
        before = at_rest(server)
        with Load(server, record, plan, compared=True):
            samples = watch(server, record, plan)
        after = at_rest(server, before)
    record.faults += replay(plan.captures, plan.folder, record.answers, "last")
    record.faults += growth_faults(samples, before, after)
    record.faults += [
        f"{path.name}: {path.read_text()[:500]}"
        for path in plan.folder.glob("*.log")
        if path.stat().st_size
    ]
    return summary(plan, record, samples, (before, after))


def watch(server: Server, record: Record, plan: Plan) -> list[Sample]:
    """Sample the server each second, and replay requests in fresh processes at random moments."""
    chance, samples = random.Random(1), list[Sample]()
    moments = sorted(chance.uniform(0.1, 0.9) * plan.seconds for _ in range(plan.rounds))
    started = time.monotonic()
    rounds: list[threading.Thread] = []

    def replay_some(name: str) -> None:
        chosen = record.sampled(chance, ROUND_REQUESTS)
        for fault in replay(plan.captures, plan.folder, chosen, name):
            record.fault(fault)

    while (now := time.monotonic() - started) < plan.seconds:
        samples.append(server.sample(round(now, 1)))
        if len(samples) % PROGRESS_SAMPLES == 0:
            print(progress(samples[-1], record), file=sys.stderr, flush=True)
        if moments and now >= moments[0] and not any(each.is_alive() for each in rounds):
            moments.pop(0)
            name = f"round-{len(rounds)}"
            rounds.append(threading.Thread(target=replay_some, args=(name,)))
            rounds[-1].start()
        time.sleep(min(1.0, plan.seconds / 20))
    for each in rounds:
        each.join()
    return samples


def progress(sample: Sample, record: Record) -> str:
    return (
        f"{sample.seconds / 60:.0f} min: RSS {sample.rss_bytes / 1e6:,.0f} MB, "
        f"{sample.descriptors} descriptors, {sample.threads} threads, "
        f"{record.requests.total():,} requests, {len(record.faults)} faults"
    )


def summary(
    plan: Plan,
    record: Record,
    samples: Sequence[Sample],
    rest: tuple[Sample, Sample],
) -> dict[str, Any]:
    kinds = {
        kind: {
            "requests": record.requests[kind],
            "median_ms": round(sorted(times)[len(times) // 2], 2),
            "p99_ms": round(sorted(times)[len(times) * 99 // 100], 2),
        }
        for kind, times in sorted(record.latencies_ms.items())
    }
    memory = {
        name: dict(
            zip(
                ("second_quarter", "last_quarter"),
                quarter_medians([getattr(s, name) for s in samples]),
                strict=True,
            )
        )
        for name in ("rss_bytes", "anonymous_bytes")
    }
    return {
        "seconds": plan.seconds,
        "clients": plan.clients,
        "requests": record.requests.total(),
        "distinct_requests_replayed": len(record.answers),
        "statuses": dict(sorted(record.statuses.items())),
        "abuses": dict(sorted(record.abuses.items())),
        "kinds": kinds,
        "memory": memory,
        "peak_rss_bytes": max(sample.rss_bytes for sample in samples),
        "descriptors": {
            "at_rest": [s.descriptors for s in rest],
            "peak": max(s.descriptors for s in samples),
        },
        "threads": {"at_rest": [s.threads for s in rest], "peak": max(s.threads for s in samples)},
        "faults": record.faults,
        "samples": [asdict(sample) for sample in samples],
    }


def text_of(result: dict[str, Any]) -> str:
    """Write a result on one screen."""
    sent = (
        f"{result['requests']:,} requests by {result['clients']} clients in "
        f"{result['seconds'] / 60:,.1f} min; statuses {result['statuses']}; "
        f"abused connections {sum(result['abuses'].values()):,}"
    )
    lines = [sent]
    lines += [
        f"  {kind:<10} {row['requests']:>8,}   median {row['median_ms']:>8.1f} ms   "
        f"p99 {row['p99_ms']:>8.1f} ms"
        for kind, row in result["kinds"].items()
    ]
    for name, medians in result["memory"].items():
        second, last = medians["second_quarter"], medians["last_quarter"]
        lines.append(
            f"{name}: {second / 1e6:,.1f} MB in the second quarter, {last / 1e6:,.1f} MB in the "
            f"last ({(last - second) / second:+.2%})"
        )
    for name in ("descriptors", "threads"):
        before, after = result[name]["at_rest"]
        lines.append(f"{name}: {before} at rest before, {after} after, peak {result[name]['peak']}")
    lines.append(f"{result['distinct_requests_replayed']:,} requests replayed in a fresh process")
    faults = result["faults"]
    lines += faults[:MAX_REPORTED]
    lines.append(f"FAILED: {len(faults):,} faults" if faults else "passed")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=40, help="requests per second, all clients")
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="replays during the run")
    parser.add_argument("-o", "--output", type=Path, help="write all figures here as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpusight-soak-") as name:
        folder = Path(name)
        captures = [folder / "large.sqlite", folder / "quarter.sqlite"]
        generate(args.kernels, captures[0])
        generate(max(1000, args.kernels // 4), captures[1])
        plan = Plan(captures, folder, args.minutes * 60, args.clients, args.rate, args.rounds)
        try:
            result = soak(plan)
        except FAILURES as error:
            sys.exit(f"FAILED: {error}")
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(text_of(result))
    sys.exit(1 if result["faults"] else 0)


if __name__ == "__main__":
    main()
