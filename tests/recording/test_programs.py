"""What a program is, from its command line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from gpusight.errors import RecordError
from gpusight.recording.programs import (
    ProgramKind,
    find_cupti,
    imported_packages,
    inspect_program,
    is_interpreter,
    query_interpreter,
    read_python,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs executable scripts")


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("python", True),
        ("python3", True),
        ("python3.11", True),
        ("/opt/x/bin/python3.13t", True),
        (r"C:\env\python.exe", True),
        ("pythonw.exe", True),
        ("pypy3", False),
        ("ipython", False),
        ("python-config", False),
        ("train.py", False),
    ],
)
def test_interpreters(word: str, is_one: bool) -> None:
    assert is_interpreter(word) is is_one


@pytest.mark.parametrize(
    ("line", "flags", "runs"),
    [
        ("python -u -X dev -W ignore t.py -m x", "u", "t.py"),
        ("python -Xdev -Im pkg -c y", "I", "pkg"),
        ("python -E -s -c t.py", "Es", None),
        ("python --check-hash-based-pycs=never t.py", "", "t.py"),
        ("python", "", None),
        ("python -m", "", None),
    ],
)
def test_interpreters_command_lines(line: str, flags: str, runs: str | None) -> None:
    result = read_python(line.split())
    assert (result.flags, result.runs) == (flags, runs)


def script(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


@posix
def test_kinds(tmp_path: Path) -> None:
    tool = script(tmp_path, "serve", f"#!{sys.executable}", "pass")
    wrapped = script(tmp_path, "long", "#!/bin/sh", f"'''exec' '{sys.executable}' \"$0\" \"$@\"")
    through_env = script(tmp_path, "env_one", "#!/usr/bin/env python3", "pass")
    shell = script(tmp_path, "run.sh", "#!/bin/sh", "python t.py")
    secret = script(tmp_path, "secret", "#!/bin/sh")
    secret.chmod(0o111)
    kinds = {
        (sys.executable, "t.py"): ProgramKind.PYTHON,
        (str(tool),): ProgramKind.PYTHON,
        (str(wrapped),): ProgramKind.PYTHON,
        (str(through_env),): ProgramKind.PYTHON,
        (str(shell),): ProgramKind.PERHAPS,
        ("sh", "-c", "python t.py"): ProgramKind.PERHAPS,
        ("env", "A=1", sys.executable, "t.py"): ProgramKind.PERHAPS,
        ("ls", "x"): ProgramKind.BINARY,
        ("ls", "t.py"): ProgramKind.PERHAPS,
    }
    for argv, kind in kinds.items():
        assert inspect_program(argv, os.environ).kind is kind, argv
    assert inspect_program([str(tool)], os.environ).interpreter == sys.executable
    assert inspect_program(["env", sys.executable], os.environ).interpreter == sys.executable


@posix
def test_flags_that_shut_us_out() -> None:
    for flags, deaf in (("-u", None), ("-I", "-I"), ("-uE", "-E"), ("-Sm", "-S"), ("-X", None)):
        assert inspect_program([sys.executable, flags, "S", "t.py"], os.environ).deaf_flag == deaf


@posix
def test_programs_that_are_not_there(tmp_path: Path) -> None:
    plain = tmp_path / "t.py"
    plain.write_text("pass")
    data = tmp_path / "data"
    data.write_text("root:x:0:0\n")
    shell = tmp_path / "run.sh"
    shell.write_text("./train")
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    for word, message in (
        ("nowhere-to-be-found", "program nowhere-to-be-found not found"),
        (str(tmp_path), "is a folder"),
        (str(plain), f"gpusight record -- python {plain}"),
        (str(shell), f"is not executable; gpusight record -- sh {shell}"),
        (str(script), f"is not executable; chmod +x {script}"),
        (str(data), "is not a program: it has no #! line and is no executable format"),
        ("/etc/passwd", "is not a program"),
    ):
        with pytest.raises(RecordError) as error:
            inspect_program([word], os.environ)
        assert message in str(error.value)


@posix
def test_nobody_is_told_to_change_what_another_user_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    monkeypatch.setattr(os, "geteuid", lambda: script.stat().st_uid + 1)
    with pytest.raises(RecordError, match="its owner must make it executable"):
        inspect_program([str(script)], os.environ)


def test_imports_of_a_program_and_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "train.py": "import os, helpers\nfrom model import layers\n",
        "helpers.py": "def f():\n    import cupy.linalg\n",
        "model/__init__.py": "from . import blocks",
        "model/layers.py": "import train\nfrom .blocks import Block",
        "model/blocks.py": "from flax import linen",
        "model/unused.py": "import torch",
        "broken.py": "import torch (",
        "pkg/__main__.py": "import jax, broken",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    train = str(tmp_path / "train.py")
    assert imported_packages(["python", train, "--lr", "1"]) == {"os", "cupy", "flax"}
    assert imported_packages(["nice", "python3", "-u", train]) == {"os", "cupy", "flax"}
    assert imported_packages([train]) == {"os", "cupy", "flax"}
    monkeypatch.chdir(tmp_path)
    assert imported_packages(["python", "-m", "pkg"]) == {"jax"}
    assert imported_packages(["python", "-m", "model.layers"]) == {"os", "cupy", "flax"}
    for unknown in (["python", "-c", "import torch"], ["python"], ["./absent"], ["sh", "x.sh"]):
        assert imported_packages(unknown) == frozenset()


def test_asking_a_python() -> None:
    answer = query_interpreter(sys.executable, os.environ)
    assert answer is not None
    assert answer.version == sys.version_info[:2]
    assert answer.packages == {"torch"}


def test_asking_a_python_for_cupti(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia" / "cu11" / "lib"
    folder.mkdir(parents=True)
    library = folder / "libcupti.so.11.8"
    library.touch()
    assert find_cupti(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)}) == str(library)
    assert find_cupti("/nowhere/python", os.environ) is None


@posix
def test_a_python_that_does_not_answer() -> None:
    assert query_interpreter(str(shutil.which("true")), os.environ) is None
    assert query_interpreter("/nowhere/python", os.environ) is None
