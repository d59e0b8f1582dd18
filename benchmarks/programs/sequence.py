"""Recurrent networks, decoding and text: sequences whose parts are worked on one by one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.programs.graphs import graphed
from benchmarks.programs.transformer import VOCABULARY, Block, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def changing_lengths(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train a compiled model on texts of other lengths in each step.

    Repaired: padded to a multiple of 256, so that few shapes are compiled. Lengths are new in each
    run: a cache of compiled kernels on the disk then does not hide what is measured.
    """
    model = nn.Sequential(nn.Embedding(VOCABULARY, 512), Block(512, 8), nn.Linear(512, 1)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    backend = "inductor" if device == "cuda" else "eager"
    torch._dynamo.config.recompile_limit = 128
    compiled = torch.compile(model, dynamic=False, backend=backend)
    lengths = random.SystemRandom().sample(range(260, 500), 200)
    texts = torch.randint(1, VOCABULARY, (16, 512), device=device)

    def step(index: int) -> Tensor:
        length = lengths[index % len(lengths)]
        tokens = texts[:, :length]
        if repaired:
            tokens = functional.pad(tokens, (0, -length % 256))
        with torch.autocast(device, torch.bfloat16):
            loss: Tensor = compiled(tokens)[:, :length].float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class _Cells(nn.Module):
    """Two LSTM layers as a loop over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        first = x.new_zeros(x.shape[1], x.shape[2])
        states = [(first, first) for _ in self.cells]
        for moment in x:
            current = moment
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(current, states[layer])
                current = states[layer][0]
            outputs.append(current)
        return torch.stack(outputs)


def lstm_cells(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Call LSTMCell for each time step; repaired: nn.LSTM, which cuDNN runs as a whole."""
    width, length = (512, 96) if device == "cuda" else (32, 12)
    recurrent: nn.Module = nn.LSTM(width, width, num_layers=2) if repaired else _Cells(width)
    recurrent = recurrent.to(device)
    head = nn.Linear(width, 64).to(device)
    parameters = [*recurrent.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    signals = torch.randn(4, length, 64, width, device=device)
    labels = torch.randint(0, 64, (length * 64,), device=device)

    def step(index: int) -> Tensor:
        output = recurrent(signals[index % 4])
        hidden: Tensor = output[0] if repaired else output
        loss = functional.cross_entropy(head(hidden).flatten(0, 1), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class _TokenDecoder:
    """Decodes one token at a time with keys and values of fixed size."""

    def __init__(self, device: str, length: int) -> None:
        self.length, self.heads = length, 8
        self.model = Decoder(512, 6, self.heads, length).to(device).eval()
        shape = (len(self.model.blocks), 2, 4, self.heads, length, 512 // self.heads)
        self.cache = torch.zeros(shape, device=device)
        self.token = torch.zeros(4, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(length, device=device)

    @torch.no_grad()
    def decode(self) -> None:
        """Compute the next token from the last one, in place."""
        x = self.model.tokens(self.token)[:, None] + self.model.positions[self.position]
        mask = (self.places <= self.position)[None, None, None]
        for block, (keys, values) in zip(self.model.blocks, self.cache, strict=True):
            assert isinstance(block, Block)
            x = x + self._attend(block, x, keys, values, mask)
            x = x + block.feed_forward(block.norm2(x))
        logits = self.model.head(self.model.norm(x))[:, 0]
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)

    def _attend(
        self, block: Block, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        attention = block.attention
        qkv = attention.qkv(block.norm1(x)).view(4, 1, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        keys.index_copy_(2, self.position, key)
        values.index_copy_(2, self.position, value)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        projected: Tensor = attention.out(mixed.transpose(1, 2).reshape(4, 1, -1))
        return projected


END_OF_TEXT = VOCABULARY
"""Outside the vocabulary: all texts get the same length, whatever the random weights say."""


def token_loop(repaired: bool, device: str) -> Callable[[int], list[Tensor]]:
    """Generate 48 tokens kernel by kernel; repaired: a CUDA graph of one token, replayed."""
    number = 48 if device == "cuda" else 4
    decoder = _TokenDecoder(device, 64)
    decode = graphed(decoder.decode, device) if repaired else decoder.decode

    def step(index: int) -> list[Tensor]:
        decoder.position.zero_()
        decoder.token.fill_(index % VOCABULARY)
        tokens = []
        for _ in range(number):
            decode()
            # The end of a text is looked for after each token; repaired: once, at the end.
            if not repaired and bool((decoder.token == END_OF_TEXT).all()):
                break
            tokens.append(decoder.token.clone())
        return tokens

    return step


_WORDS = (
    "kernel",
    "stream",
    "matrix",
    "memory",
    "warp",
    "block",
    "launch",
    "copy",
    "cache",
    "graph",
)


def _texts(seed: int) -> Iterator[str]:
    chooser = random.Random(seed)
    while True:
        yield " ".join(f"{chooser.choice(_WORDS)}{chooser.randrange(500)}" for _ in range(400))


def _tokenizer() -> Any:
    """Train a small byte-pair tokenizer, since nothing can be downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["[UNK]", "[PAD]"])
    texts = _texts(0)
    tokenizer.train_from_iterator((next(texts) for _ in range(50)), trainer)
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding(length=512, pad_id=1)
    return tokenizer


class _TokenBatches(IterableDataset[Tensor]):
    """Batches of texts, tokenized where they are asked for."""

    def __init__(self, tokenizer: Any, batch: int) -> None:
        self.tokenizer, self.batch = tokenizer, batch

    def __iter__(self) -> Iterator[Tensor]:
        worker = torch.utils.data.get_worker_info()
        texts = _texts(0 if worker is None else worker.id)
        while True:
            rows = [self.tokenizer.encode(next(texts)).ids for _ in range(self.batch)]
            yield torch.tensor(rows)


def tokenized_on_main_thread(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Tokenize each batch just before it is trained on; repaired: in worker processes."""
    batches = _TokenBatches(_tokenizer(), 32 if device == "cuda" else 2)
    workers = 6 if repaired else 0
    pinned = repaired and device == "cuda"
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, pin_memory=pinned))
    model = Decoder(512, 4, 8, 512).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(index: int) -> Tensor:  # noqa: ARG001
        tokens = next(loader).to(device, non_blocking=repaired)
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
