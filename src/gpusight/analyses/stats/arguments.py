"""What may follow a report's name, such as the `base` of `cuda_gpu_kern_sum:base`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpusight.errors import UsageError


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one report."""

    kernel_name: str = "name"
    """Column of `kernels` that names a kernel."""
    nvtx_name: bool = False
    """Put the innermost NVTX range before a kernel's name."""
    rows: int = 10
    """Most rows to give; negative for all."""


KERNEL_NAMES = ("base", "mangled", "nobase")
WITH_RANGE = ("nvtx-name", *KERNEL_NAMES)
ROWS = ("rows=<limit>",)


def parse(report: str, allowed: tuple[str, ...], words: list[str]) -> Arguments:
    """Read the words that follow a report's name; raises UsageError for one it does not take."""
    parsed = Arguments()
    for word in words:
        key, _, value = word.partition("=")
        if word in allowed and word == "nvtx-name":
            parsed = replace(parsed, nvtx_name=True)
        elif word in allowed:
            parsed = replace(parsed, kernel_name=_name_column(word, parsed.kernel_name))
        elif f"{key}=<limit>" in allowed and value.lstrip("-").isdecimal():
            parsed = replace(parsed, rows=int(value))
        else:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise UsageError(f"report {report} has no argument {word!r}", hint=takes)
    return parsed


def _name_column(word: str, before: str) -> str:
    """Choose the column; `base` wins over `mangled`, as it does in nsys."""
    if word == "nobase" or before == "base_name":
        return before
    return {"base": "base_name", "mangled": "mangled_name"}[word]
