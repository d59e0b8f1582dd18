"""Asks PyTorch whether it sees a GPU and can profile it; prints one line of JSON."""

from __future__ import annotations

import json
import sys

import torch
import torch.profiler

_supported = getattr(torch.profiler, "supported_activities", None)
_answer = {
    "version": str(torch.__version__),
    "cuda": torch.version.cuda,
    "hip": getattr(torch.version, "hip", None),
    "available": bool(torch.cuda.is_available()),
    "activities": [] if _supported is None else sorted(one.name for one in _supported()),
}
sys.stdout.write("\n" + json.dumps(_answer) + "\n")
