"""The names that events of a PyTorch trace carry, as they may stand in a copy."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.readers.chrome import kinds
from gpusight.readers.paths import file_name, shown_file
from gpusight.sharing.hidden import without_homes
from gpusight.sharing.names import hash_kernel, hash_range, hash_text
from gpusight.sharing.profiler_words import is_call, is_operator, is_said
from gpusight.sharing.report import Category

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Hide: TypeAlias = Callable[[str, bytes], str]

_FRAME = re.compile(r"(?P<file>[^()]*?)\((?P<line>-?\d+)\): (?P<function>.*)", re.DOTALL)
_MODULE = re.compile(r"nn\.Module: (?P<name>.*?)(?P<number>_\d{1,6})?", re.DOTALL)
_BUILT_IN = re.compile(r"<built-in (?P<what>method|function) (?P<name>\w+).*>", re.DOTALL)
_GENERATED = re.compile(r"\b[a-z2-7]{2}/c[a-z2-7]{40,80}\.py$")
"""Files that torch.compile writes are named by a hash already; analyses tell them by that."""
_PACKAGES = """
    accelerate apex datasets deepspeed diffusers einops fairscale flash_attn flax functorch
    flashinfer huggingface_hub ignite jax jaxlib lightning megatron numpy optax pandas peft
    pytorch_lightning
    scipy sglang tensorflow timm tokenizers torch torchaudio torchdata torchgen torchrec torchtext
    torchvision tqdm transformer_engine transformers triton trl vllm xformers
"""
_PUBLIC = sys.stdlib_module_names | set(_PACKAGES.split())
"""Packages that everyone has: where in them a function lies tells nothing."""
_ELSEWHERE = "~/"
"""Stands for the folders of a file: without one, `queue.py` would be taken for Python's own."""
_PARTS = """
    _dynamo _functorch _higher_order_ops _inductor _ops _subclasses _tensor _utils ao autocast
    autocast_mode autograd backends checkpoint container conv cuda data data_parallel dataloader
    distributed fetch fsdp function functional fx grad_mode graph init jit linear loss lr_scheduler
    models module modules nn optim optimizer parallel profiler pooling runtime streams testing
    torch utils worker
"""
_FOLDERS = frozenset(_PARTS.split())
"""Parts of paths inside PyTorch that analyses look at, or that everyone knows."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the names of one kind of event tell, and what is done with them."""

    category: Category
    hide: Hide
    """Makes the name that stands in a copy with hashed names."""
    show: Callable[[str], str] | None = None
    """Makes the name that stands in any other copy; none where it stays but for home folders."""

    def clean(self, name: str, salt: bytes | None) -> str:
        """Give the name as it may stand in the copy; hashed where a salt is given."""
        if salt is not None:
            return self.hide(name, salt)
        return without_homes(name) if self.show is None else self.show(name)


def short_frame(name: str) -> str:
    """Shorten the path of a Python frame to the file, or to where it lies in a public package."""
    match = _FRAME.fullmatch(name)
    if match is None:
        return name if name.startswith("<") or _MODULE.fullmatch(name) else _without_folders(name)
    return f"{_short_path(match['file'])}({match['line']}): {match['function']}"


def hide_frame(name: str, salt: bytes) -> str:
    """Hash a Python frame but for the line, and for what is PyTorch's or Python's own."""
    match = _FRAME.fullmatch(name)
    if match is not None:
        path = _hidden_path(_short_path(match["file"]), salt)
        return f"{path}({match['line'][:7]}): {hash_range(match['function'], salt)}"
    match = _MODULE.fullmatch(name)
    if match is not None:
        return f"nn.Module: {hash_range(match['name'], salt)}{match['number'] or ''}"
    match = _BUILT_IN.fullmatch(name)
    if match is not None:
        return f"<built-in {match['what']} {hash_range(match['name'], salt)}>"
    return hash_range(name, salt)


def _short_path(path: str) -> str:
    if path.startswith("<"):  # code without a file, such as <string>
        return path
    shown = shown_file(path) or ""
    generated = _GENERATED.search(shown)
    if generated is not None:
        return generated.group()
    first = shown.partition("/")[0].removesuffix(".py")
    if first in _PUBLIC or "/" not in shown:
        return shown
    return _ELSEWHERE + file_name(shown)


def _without_folders(text: str) -> str:
    """Shorten whatever looks like a path in a text that is no frame."""
    return " ".join(file_name(word) if "/" in word else word for word in text.split(" "))


def _hidden_path(path: str, salt: bytes) -> str:
    if _GENERATED.fullmatch(path):
        return f"zz/c{''.join(hash_text(path[i:], salt) for i in range(3))}.py"
    return "/".join(_hidden_part(part, salt) for part in path.split("/"))


def _hidden_part(part: str, salt: bytes) -> str:
    stem, dot, ending = part.partition(".")
    is_file = dot + ending in {"", ".py", ".pyx"}
    if is_file and (stem in _FOLDERS or stem in _PUBLIC or part == "~"):
        return part
    return hash_range(stem, salt) + dot + ending if is_file else hash_range(part, salt)


def _hide_unless(known: Callable[[str], bool], otherwise: Hide) -> Hide:
    return lambda name, salt: name if known(name) else otherwise(name, salt)


_RANGE = Naming(Category.PROGRAM_TEXTS, _hide_unless(is_operator, hash_range))
_CALL = Naming(Category.CALLS, _hide_unless(is_call, hash_range))
_COPIED = Naming(Category.PROFILER, _hide_unless(is_said, hash_range))
KERNELS = Naming(Category.KERNEL_NAMES, hash_kernel)
_PYTHON = Naming(Category.PYTHON_FUNCTIONS, hide_frame, short_frame)

NAMINGS: dict[str, Naming] = {
    kinds.OPERATOR: _RANGE,
    kinds.ANNOTATION: _RANGE,
    kinds.GPU_ANNOTATION: _RANGE,
    kinds.KERNEL: KERNELS,
    kinds.COPY: _COPIED,
    kinds.FILL: _COPIED,
    kinds.RUNTIME: _CALL,
    kinds.DRIVER: _CALL,
    kinds.PYTHON: _PYTHON,
}
"""Of the kinds whose names are the program's; those of the others are the profiler's own words."""
