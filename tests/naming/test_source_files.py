"""Which code is the program's own."""

from __future__ import annotations

import pytest

from gpusight.naming.source_files import is_library_binary, is_library_file, python_module

_PYTHON = [
    ("/home/ada/train.py", False, "train"),
    ("~/project/data.py", False, "data"),
    ("train.py", False, "train"),
    ("models/attention.py", False, "models.attention"),
    ("<ipython-input-3>", False, "<ipython-input-3>"),
    ("/opt/venv/lib/python3.11/site-packages/mylib/step.py", True, "mylib.step"),
    ("/usr/lib/python3/dist-packages/yaml/__init__.py", True, "yaml"),
    ("/usr/lib/python3.12/threading.py", True, "threading"),
    ("threading.py", True, "threading"),
    ("torch/nn/modules/linear.py", True, "torch.nn.modules.linear"),
    ("transformers/trainer.py", True, "transformers.trainer"),
    ("<frozen importlib._bootstrap>", True, "<frozen importlib._bootstrap>"),
    ("/tmp/torchinductor_ada/ab/cabc.py", True, "cabc"),
    ("/src/gpusight/recording/inside/step_hub.py", True, "step_hub"),
    ("/src/gpusight/recording/inside/site/sitecustomize.py", True, "sitecustomize"),
    ("flashinfer/fused_moe/core.py", True, "flashinfer.fused_moe.core"),
    (r"C:\work\train.py", False, "train"),
]


@pytest.mark.parametrize(("path", "library", "module"), _PYTHON)
def test_python_files(path: str, library: bool, module: str) -> None:
    assert is_library_file(path) is library
    assert python_module(path) == module


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("libtorch_cpu.so", True),
        ("libc.so.6", True),
        ("libc-2.28.so", True),
        ("ld-2.28.so", True),
        ("_C.cpython-311-x86_64-linux-gnu.so", True),
        ("[kernel.kallsyms]", True),
        ("nvcuda.dll", True),
        ("python3.11", True),
        ("ex-gpu", False),
        ("solver.exe", False),
    ],
)
def test_binaries(name: str, library: bool) -> None:
    assert is_library_binary(name) is library
