"""Whose code a source file or binary is: the program's own, or a library's."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"^(?:.*/)?lib(?:64)?/python\d[\d.]*/")
_FROZEN = re.compile(r"^<frozen |^<__array_function__|^<attrs generated|^<eval_with_key>")
_RECORDER = re.compile(r"(?:^|/)recording/inside/(?:site/)?\w+\.py$")
"""What gpusight runs inside the program, where it is not installed but checked out."""
_GENERATED = re.compile(r"torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{40,}\.py$")
"""Files that torch.compile writes: in a folder of that name, or named by a hash in a folder of two
letters where the path is cut."""
FRAMEWORKS = frozenset({"torch", "functorch", "torchgen", "triton", "numpy", "gpusight"})
"""Packages that launch on behalf of their callers."""
_KNOWN_PACKAGES = FRAMEWORKS | {
    *("accelerate", "aiohttp", "aiter", "albumentations", "apex", "bitsandbytes", "cloudpickle"),
    *("colossalai", "composer", "compressed_tensors", "cudf", "cuml", "cupy", "cupyx", "cv2"),
    *("dask", "datasets", "deep_ep", "deep_gemm", "deepspeed", "dgl", "diffusers", "einops"),
    *("evaluate", "fairscale", "fairseq", "fairseq2", "faiss", "flash_attn"),
    *("flash_attn_interface", "flashinfer", "flax", "fsspec", "gym", "gymnasium", "h5py"),
    *("haiku", "horovod", "huggingface_hub", "ignite", "imageio", "ipykernel", "IPython", "jax"),
    *("jaxlib", "joblib", "keras", "kornia", "librosa", "lightning", "lightning_fabric"),
    *("llvmlite", "matplotlib", "megatron", "mlflow", "mmcv", "mmengine", "monai", "mpi4py"),
    *("networkx", "nltk", "numba", "omegaconf", "onnx", "onnxruntime", "open_clip", "optax"),
    *("optree", "orbax", "pandas", "peft", "PIL", "polars", "pyarrow", "pydantic"),
    *("pytorch_lightning", "ray", "requests", "safetensors", "scipy", "sentencepiece"),
    *("sgl_kernel", "sglang", "skimage", "sklearn", "soundfile", "spacy", "stable_baselines3"),
    *("tensorboard", "tensordict", "tensorflow", "tensorrt", "tensorrt_llm", "tiktoken", "timm"),
    *("tokenizers", "torch_geometric", "torchao", "torchaudio", "torchdata", "torchdiffeq"),
    *("torchmetrics", "torchrl", "torchtext", "torchtune", "torchvision", "tqdm"),
    *("transformer_engine", "transformers", "trl", "ultralytics", "uvicorn", "vllm"),
    *("vllm_flash_attn", "wandb", "webdataset", "xformers", "xgboost", "yaml"),
}
"""Packages that people install rather than write, for paths that recorders shortened to them."""
_BINARY = re.compile(r"\.(?:so|dylib|dll|pyd)\b|^ld-|^\[|^lib[\w+-]+-[\d.]+$", re.IGNORECASE)
_INTERPRETER = re.compile(r"^python[\d.]*(?:\.exe)?$")
_MAX_CHARS = 4_000
"""No path is longer; bounds the regular expressions on hostile names."""


def is_generated(path: str) -> bool:
    """Whether torch.compile wrote the file."""
    return _GENERATED.search(path[:_MAX_CHARS]) is not None


def is_installed(path: str) -> bool:
    """Whether a path of Python code leads into a folder of installed packages."""
    return _INSTALLED.match(path[:_MAX_CHARS]) is not None


def top_level(path: str) -> str:
    """Return the name of the outermost folder that is part of the import: `torch`."""
    package = _STANDARD_LIBRARY.sub("", _INSTALLED.sub("", path[:_MAX_CHARS]))
    return package.lstrip("/").partition("/")[0].removesuffix(".py")


def is_standard_library(path: str) -> bool:
    """Whether a path of Python code leads into Python's own library."""
    short = path[:_MAX_CHARS]
    return top_level(short) in sys.stdlib_module_names or bool(_STANDARD_LIBRARY.match(short))


@lru_cache(maxsize=100_000)
def is_library_file(path: str) -> bool:
    """Whether Python code is of a library: installed, of Python itself, or written by a compiler.

    `path` is as recorded, or shortened to the package: `torch/nn/modules/linear.py`.
    """
    path = path[:_MAX_CHARS].replace("\\", "/")
    if is_generated(path) or is_installed(path) or _FROZEN.match(path) or _RECORDER.search(path):
        return True
    return top_level(path) in _KNOWN_PACKAGES or is_standard_library(path)


@lru_cache(maxsize=100_000)
def is_library_binary(name: str) -> bool:
    """Whether native code is of a library: a shared object, the kernel or Python itself.

    What is left are executables: of a C++ program, its own code.
    """
    return bool(_BINARY.search(name[:_MAX_CHARS]) or _INTERPRETER.match(name[:_MAX_CHARS]))


@lru_cache(maxsize=100_000)
def python_module(path: str) -> str:
    """Return the module of a file: `torch.nn.modules.linear`; of a script, its name."""
    short = path[:_MAX_CHARS].replace("\\", "/")
    package = _STANDARD_LIBRARY.sub("", _INSTALLED.sub("", short))
    if package.startswith(("/", "~", "<", "./")) or ":" in package[:3]:
        package = package.rpartition("/")[2]
    name = package.removesuffix(".py").removesuffix("/__init__").strip("/")
    return name.replace("/", ".") or path
