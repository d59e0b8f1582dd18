"""The programs: a training loop that something on the host holds up.

Each function makes a step. The comment `guilty` ends the lines that take the time; the scorer reads
them, so a line may move. `python -m benchmarks.guilty_lines NAME` runs one.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import gc
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import queue
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[int], Any]


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_WIDTH = 128


class Trainer:
    """A small model and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def train(self, batch: torch.Tensor | None = None) -> torch.Tensor:
        """Take one step."""
        if batch is None:
            batch = torch.ones(16, _WIDTH)
        loss = self.model(batch.to(DEVICE)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()  # type: ignore[no-any-return]


def _text(words: int, seed: int) -> str:
    random.seed(seed)
    return " ".join("".join(random.choices("abcdefgh", k=6)) for _ in range(words))


def loader_decode() -> Step:
    """The loader decompresses on the main thread."""
    trainer = Trainer()
    packed = zlib.compress(os.urandom(1 << 20) * 6, 1)

    def load() -> torch.Tensor:
        raw = zlib.decompress(packed)  # guilty
        return torch.frombuffer(bytearray(raw[: 16 * _WIDTH]), dtype=torch.uint8)

    return lambda _: trainer.train(load().float().reshape(16, _WIDTH))


def loader_getitem() -> Step:
    """A data set computes each item in Python; the loader has no workers."""
    trainer = Trainer()

    class Squares(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> torch.Tensor:
            values = [(index * k) % 251 for k in range(20_000)]  # guilty
            return torch.tensor(values[:_WIDTH], dtype=torch.float32)

    batches = iter(torch.utils.data.DataLoader(Squares(), batch_size=16))
    return lambda _: trainer.train(next(batches))


def tokenizer() -> Step:
    """Text becomes numbers word by word."""
    trainer, text = Trainer(), _text(60_000, 1)
    known: dict[str, int] = {}

    def encode() -> list[int]:
        numbers = []
        for word in text.split():  # guilty
            number = known.setdefault(word, len(known))  # guilty
            numbers.append(number)  # guilty
        return numbers

    def step(_: int) -> None:
        numbers = encode()
        trainer.train(torch.tensor(numbers[: 16 * _WIDTH]).float().reshape(16, _WIDTH))

    return step


def text_cleaning() -> Step:
    """A regular expression cleans text before each step."""
    trainer, text = Trainer(), _text(40_000, 2)
    pattern = re.compile(r"(?:[aeiou][bcd]|[fgh]{2})")

    def clean() -> str:
        return pattern.sub("-", text)  # guilty

    def step(_: int) -> None:
        clean()
        trainer.train()

    return step


def log_file() -> Step:
    """Each step writes a line per value to a file, and waits for the disk."""
    trainer = Trainer()
    file = tempfile.TemporaryFile("w")  # noqa: SIM115 - open as long as the program runs

    def log(values: list[float]) -> None:
        for value in values:
            print(f"{value:.6f}", file=file, flush=True)  # guilty

    def step(_: int) -> None:
        trainer.train()
        log([0.1] * 10_000)

    return step


def log_text() -> Step:
    """Each step formats all parameters for a message that nobody reads."""
    trainer = Trainer()

    def describe(values: list[float]) -> str:
        return ", ".join(f"{value:+.4e}" for value in values)  # guilty

    def step(_: int) -> None:
        trainer.train()
        describe(next(trainer.model.parameters()).detach().flatten().tolist() * 3)

    return step


def metric_loop() -> Step:
    """A confusion matrix is counted in Python."""
    trainer = Trainer()
    pairs = [(k % 10, (k * 7) % 10) for k in range(150_000)]

    def count() -> list[list[int]]:
        matrix = [[0] * 10 for _ in range(10)]
        for truth, guess in pairs:  # guilty
            matrix[truth][guess] += 1  # guilty
        return matrix

    def step(_: int) -> None:
        trainer.train()
        count()

    return step


def metric_items() -> Step:
    """A metric reads a tensor value by value."""
    trainer = Trainer()
    scores = torch.ones(6_000, device=DEVICE)

    def mean() -> float:
        total = 0.0
        for score in scores:  # guilty
            total += score.item()  # guilty
        return total / len(scores)

    def step(_: int) -> None:
        trainer.train()
        mean()

    return step


def gradient_norms() -> Step:
    """The norm of each row of each weight is read back by itself."""
    trainer = Trainer()

    def norms() -> list[float]:
        weights = [p.detach() for p in trainer.model.parameters() if p.ndim == 2]
        return [float(row.norm()) for weight in weights for row in weight]  # guilty

    def step(_: int) -> None:
        trainer.train()
        norms()
        norms()

    return step


def garbage_collection() -> Step:
    """The program collects garbage in each step, with many objects alive."""
    trainer = Trainer()
    alive = [[number] for number in range(400_000)]

    def tidy() -> int:
        gc.collect()  # guilty
        return len(alive)

    def step(_: int) -> None:
        trainer.train()
        tidy()

    return step


def lock_wait() -> Step:
    """A thread that saves holds the lock that the loop needs."""
    trainer, lock = Trainer(), threading.Lock()

    def save() -> None:
        while True:
            with lock:
                time.sleep(0.025)
            time.sleep(0.001)

    threading.Thread(target=save, daemon=True).start()

    def step(_: int) -> None:
        trainer.train()
        with lock:  # guilty
            pass

    return step


def queue_wait() -> Step:
    """A thread makes batches more slowly than the loop takes them."""
    trainer = Trainer()
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def produce() -> None:
        while True:
            time.sleep(0.025)
            batches.put(torch.ones(16, _WIDTH))

    threading.Thread(target=produce, daemon=True).start()

    def step(_: int) -> None:
        batch = batches.get()  # guilty
        trainer.train(batch)

    return step


def recompile() -> Step:
    """A compiled function sees another constant in each step, and is compiled again."""
    trainer = Trainer()

    def forward(batch: torch.Tensor, scale: float) -> torch.Tensor:
        for _ in range(10):
            batch = torch.relu(batch * scale) + batch
        return batch

    def compiled(number: int) -> torch.Tensor:
        torch._dynamo.reset()
        function = torch.compile(forward, backend="eager", dynamic=False)
        return function(torch.ones(16, _WIDTH, device=DEVICE), 1.0 + number)  # guilty

    def step(number: int) -> None:
        compiled(number)
        trainer.train()

    return step


def autotune() -> Step:
    """Block sizes are tried again in each step."""
    trainer = Trainer()
    matrix = torch.ones(256, 256, device=DEVICE)

    def tune() -> int:
        times = {}
        for size in (16, 32, 64, 128):
            began = time.perf_counter()
            for first in range(0, 256, 2):
                torch.mm(matrix[first : first + size], matrix)  # guilty
            times[size] = time.perf_counter() - began
        return min(times, key=lambda size: times[size])

    def step(_: int) -> None:
        tune()
        trainer.train()

    return step


def numpy_conversion() -> Step:
    """A batch takes the way through a list of lists."""
    trainer = Trainer()
    image = np.ones((512, 512), dtype=np.float32)

    def convert() -> torch.Tensor:
        rows = image.tolist()
        return torch.tensor(rows)  # guilty

    def step(_: int) -> None:
        trainer.train(convert()[:16, :_WIDTH])

    return step


def checkpoint() -> Step:
    """Each step saves the model and its optimizer."""
    trainer = Trainer()
    state = {"model": torch.ones(1 << 22), "step": 0}

    def save() -> None:
        file = io.BytesIO()
        torch.save(state, file)  # guilty

    def step(_: int) -> None:
        trainer.train()
        save()

    return step


def model_copy() -> Step:
    """An average of the model is kept by copying all of it."""
    trainer = Trainer()
    history = {f"layer{k}": [float(v) for v in range(60)] for k in range(150)}

    def keep() -> Any:
        return copy.deepcopy(history)  # guilty

    def step(_: int) -> None:
        trainer.train()
        keep()

    return step


def augmentation() -> Step:
    """Images are flipped and shifted pixel by pixel."""
    trainer = Trainer()
    image = [[(x * y) % 255 for x in range(300)] for y in range(300)]

    def flip() -> list[list[int]]:
        return [[255 - pixel for pixel in reversed(row)] for row in image]  # guilty

    def step(_: int) -> None:
        for _ in range(4):
            flip()
        trainer.train()

    return step


def numpy_augmentation() -> Step:
    """NumPy makes noise for a whole batch of images."""
    trainer = Trainer()
    generator = np.random.default_rng(0)

    def noise() -> np.ndarray[Any, Any]:
        return generator.normal(size=(8, 3, 256, 256))  # guilty

    def step(_: int) -> None:
        noise()
        trainer.train()

    return step


def environment() -> Step:
    """The environment of a reinforcement learner is simulated in Python."""
    trainer = Trainer()

    def simulate(state: tuple[float, float]) -> tuple[float, float]:
        place, speed = state
        for _ in range(120_000):  # guilty
            speed += -0.01 * place  # guilty
            place += 0.01 * speed  # guilty
        return place, speed

    def step(_: int) -> None:
        simulate((1.0, 0.0))
        trainer.train()

    return step


def rate_limit() -> Step:
    """Somebody left a sleep in the loop."""
    trainer = Trainer()

    def step(_: int) -> None:
        trainer.train()
        time.sleep(0.03)  # guilty

    return step


def json_records() -> Step:
    """Records are parsed in each step."""
    trainer = Trainer()
    line = json.dumps({"tokens": list(range(300)), "text": "x" * 200})

    def parse() -> list[Any]:
        return [json.loads(line) for _ in range(900)]  # guilty

    def step(_: int) -> None:
        parse()
        trainer.train()

    return step


def pickled_batches() -> Step:
    """Batches come as pickles of Python objects."""
    trainer = Trainer()
    packed = pickle.dumps([{"id": k, "values": [k, k + 1, k + 2]} for k in range(25_000)])

    def unpack() -> Any:
        return pickle.loads(packed)  # guilty

    def step(_: int) -> None:
        unpack()
        trainer.train()

    return step


def batch_sorting() -> Step:
    """Samples are sorted by length with a function in Python."""
    trainer = Trainer()
    samples = [[0] * (k * 7919 % 97) for k in range(40_000)]

    def order() -> list[list[int]]:
        return sorted(samples, key=lambda sample: (len(sample), -len(sample)))  # guilty

    def step(_: int) -> None:
        order()
        trainer.train()

    return step


def checksum() -> Step:
    """Data are hashed before they are used."""
    trainer = Trainer()
    data = os.urandom(12 << 20)

    def check() -> str:
        return hashlib.sha256(data).hexdigest()  # guilty

    def step(_: int) -> None:
        check()
        trainer.train()

    return step


def polling() -> Step:
    """Another program is asked for the state of the machine in each step."""
    trainer = Trainer()

    def poll() -> int:
        command = [sys.executable, "-S", "-c", "pass"]
        return subprocess.run(command, check=False).returncode  # guilty

    def step(_: int) -> None:
        poll()
        trainer.train()

    return step


def collate_padding() -> Step:
    """A function of the program, which the loader calls, pads samples value by value."""
    trainer = Trainer()
    samples = [[float(k)] * (6_000 + 400 * k) for k in range(16)]

    class Ragged(torch.utils.data.Dataset[list[float]]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> list[float]:
            return samples[index % 16]

    def collate(rows: list[list[float]]) -> torch.Tensor:
        places = range(max(map(len, rows)))
        # A tensor of zeros, filled row by row, would do.
        # As people write it:
        padded = [[row[k] if k < len(row) else 0.0 for k in places] for row in rows]  # guilty
        return torch.tensor([row[:_WIDTH] for row in padded])

    batches = iter(torch.utils.data.DataLoader(Ragged(), batch_size=16, collate_fn=collate))
    return lambda _: trainer.train(next(batches))


def database_query() -> Step:
    """Each step asks a database for statistics that do not change."""
    trainer, database = Trainer(), sqlite3.connect(":memory:")
    database.execute("CREATE TABLE samples (id INTEGER, label INTEGER)")
    rows = ((k, k * 7919 % 1000) for k in range(200_000))
    database.executemany("INSERT INTO samples VALUES (?, ?)", rows)

    def counts() -> list[tuple[int, int]]:
        query = "SELECT label, count(*) FROM samples GROUP BY label"
        return database.execute(query).fetchall()  # guilty

    def step(_: int) -> None:
        counts()
        trainer.train()

    return step


def module_hook() -> Step:
    """A hook, which PyTorch calls after each layer, makes a histogram of the weights."""
    trainer = Trainer()
    histogram: collections.Counter[float] = collections.Counter()

    def watch(layer: torch.nn.Linear, *_: object) -> None:
        for value in layer.weight.flatten().tolist():  # guilty
            histogram[round(value, 2)] += 1  # guilty

    for layer in trainer.model:
        layer.register_forward_hook(watch)
    return lambda _: trainer.train()


def event_loop() -> Step:
    """Batches come from a service, one request after the other."""
    trainer = Trainer()

    async def fetch() -> torch.Tensor:
        await asyncio.sleep(0.025)  # guilty
        return torch.ones(16, _WIDTH)

    def step(_: int) -> None:
        batch = asyncio.run(fetch())  # guilty
        trainer.train(batch)

    return step


def small_files() -> Step:
    """Samples are files, read one by one."""
    trainer = Trainer()
    folder = Path(tempfile.mkdtemp())
    paths = [folder / f"{number}.bin" for number in range(800)]
    for path in paths:
        path.write_bytes(bytes(_WIDTH))

    def read() -> list[bytes]:
        return [path.read_bytes() for path in paths]  # guilty

    def step(_: int) -> None:
        read()
        trainer.train()

    return step


def process_pipe() -> Step:
    """Another process makes batches more slowly than the loop takes them."""
    trainer = Trainer()
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def produce() -> None:
        while True:
            time.sleep(0.025)  # guilty
            sender.send([1.0] * _WIDTH)

    multiprocessing.get_context("fork").Process(target=produce, daemon=True).start()

    def step(_: int) -> None:
        row = receiver.recv()  # guilty
        trainer.train(torch.tensor(row).expand(16, _WIDTH))

    return step


PROGRAMS: tuple[Callable[[], Step], ...] = (
    loader_decode,
    loader_getitem,
    tokenizer,
    text_cleaning,
    log_file,
    log_text,
    metric_loop,
    metric_items,
    gradient_norms,
    garbage_collection,
    lock_wait,
    queue_wait,
    recompile,
    autotune,
    numpy_conversion,
    checkpoint,
    model_copy,
    augmentation,
    numpy_augmentation,
    environment,
    rate_limit,
    json_records,
    pickled_batches,
    batch_sorting,
    checksum,
    polling,
    collate_padding,
    database_query,
    module_hook,
    event_loop,
    small_files,
    process_pipe,
)
