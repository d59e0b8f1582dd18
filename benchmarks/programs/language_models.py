"""Language models of transformers, with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Callable


def _llama(device: str, width: int, layers: int, attention: str) -> Any:
    if device == "cpu":
        width, layers = 64, 2
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 if width > 64 else 2,
        max_position_embeddings=2048,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(device, torch.bfloat16)


def _training(model: Any, device: str, batch: int, length: int) -> Callable[[int], Tensor]:
    if device == "cpu":
        batch, length = 2, 16
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = torch.randint(0, 8192, (3, batch, length), device=device)

    def step(index: int) -> Tensor:
        tokens = batches[index % 3]
        loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def eager_attention(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train a Llama with attn_implementation="eager"; repaired: "sdpa"."""
    model = _llama(device, 1024, 6, "sdpa" if repaired else "eager")
    return _training(model, device, 8, 1024)


def gpt2_training(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Healthy: a GPT-2 in bf16 with fused attention, activation and optimizer."""
    size = (1024, 12, 16) if device == "cuda" else (32, 2, 2)
    config = GPT2Config(
        vocab_size=8192,
        n_embd=size[0],
        n_layer=size[1],
        n_head=size[2],
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return _training(model.to(device, torch.bfloat16), device, 32, 1024)


def prompts_one_by_one(repaired: bool, device: str) -> Callable[[int], list[Tensor]]:
    """Answer four prompts with generate(), one after the other; repaired: as a batch."""
    new, length = (16, 64) if device == "cuda" else (2, 4)
    model = _llama(device, 512, 6, "sdpa").eval()
    prompts = torch.randint(0, 8192, (3, 4, length), device=device)
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}

    def answer(tokens: Tensor) -> Tensor:
        answered: Tensor = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        return answered

    def step(index: int) -> list[Tensor]:
        batch = prompts[index % 3]
        return [answer(batch)] if repaired else [answer(prompt[None]) for prompt in batch]

    return step
