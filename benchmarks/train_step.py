"""A training script without a mark of any profiler; prints the median time of its steps."""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SKIPPED = 5
"""Steps that warm up."""


def main() -> None:
    """Train a small transformer on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--times", help="write each step's seconds to this file, as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = nn.TransformerEncoderLayer(args.width, 8, 4 * args.width, batch_first=True)
    encoder = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
    embed, head = nn.Embedding(1000, args.width), nn.Linear(args.width, 1000)
    model = nn.Sequential(embed, encoder, head).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randint(0, 1000, (args.steps * args.batch, 128)))
    times, last = [], time.perf_counter()
    for (tokens,) in DataLoader(data, args.batch):
        inputs = tokens.to(device)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    kept = sorted(times[SKIPPED:] or times)
    print(f"median step: {1e3 * kept[len(kept) // 2]:.2f} ms of {len(kept)} steps")
    if args.times:
        with open(args.times, "w") as file:  # noqa: PTH123 - a script of few lines
            json.dump(times, file)


if __name__ == "__main__":
    main()
