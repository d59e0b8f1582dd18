"""What was planted in the captures of `shared/data`, and a client without a model that finds it.

python -m tests.mcp.planted      # prints the table of docs/agents.md
"""

from __future__ import annotations

MAX_CALLS = 3
MAX_TOKENS = 6000
_FP32_GPT = {"fp32-no-tensor-cores", "unfused-attention"}
_TINY = {"elementwise-chain", "launch-bound"}
_CONV = {"launch-bound", "layout-transpose", "conv-algorithm"}
PROGRAMS: dict[str, set[str]] = {
    "gpt_small_forward": _FP32_GPT,
    "gpt_small_fwdbwd": _FP32_GPT,
    "gpt_small_train": _FP32_GPT,
    "gpt_small_train_stack": {*_FP32_GPT, "launch-bound"},
    "gpt_small_gpumetrics": _FP32_GPT,
    "gpt_small_train_bf16_fused": {"launch-bound"},
    "gpt_tiny_osrt": {"launch-bound"},
    "gpt_tiny_train_r1": {"launch-bound"},
    "gpt_tiny_train_r2": {"launch-bound"},
    "gpt_tiny_train_r3": {"launch-bound"},
    "gpt_tiny_train_tf32_r1": {"launch-bound"},
    "gpt_tiny_train_tf32_r2": {"launch-bound"},
    "gpt_tiny_train_tf32_r3": {"launch-bound"},
    "dataload": {"input-starved"},
    "pageable": {"pageable-copy"},
    "tiny": _TINY,
    "item": {"host-sync", "launch-bound"},  # the host is slower than the GPU anyway
    "conv": _CONV,
    "healthy": set(),
}
"""Programs by the stem of their captures, with the findings of what was planted, as README.md of
that folder has it; none for the healthy one. One of these must be the first fix."""
