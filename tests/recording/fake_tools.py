"""Programs that behave like nsys and ncu: they say a version, run the program, write a report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusight.sniff import NCU_REPORT, NSYS_REPORT

_TOOL = '''#!{python}
"""Stands in for a profiler. FAKE_MODE says what it leaves behind."""
import os, pathlib, signal, subprocess, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("{title} {version}")
    sys.exit()
if "--help" in arguments:
    sys.exit(1)
output = None
for index, word in enumerate(arguments):
    if word in ("-o", "--output", "--export"):
        output = arguments[index + 1]
    elif word.startswith(("--output=", "--export=")):
        output = word.partition("=")[2]
begins = arguments.index(os.environ["FAKE_PROGRAM"])
pathlib.Path(os.environ["FAKE_LOG"]).write_text("\\n".join(arguments[:begins]))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
code = subprocess.call(arguments[begins:])
output = output.removesuffix("{suffix}")
mode = os.environ.get("FAKE_MODE", "write")
if mode == "no steps":  # nothing begins to record
    mode = "nothing" if "--capture-range=cudaProfilerApi" in arguments else "write"
if mode == "write":
    pathlib.Path(output + "{suffix}").write_bytes({magic} + bytes(2000))
elif mode == "broken":
    pathlib.Path(output + "{suffix}").write_bytes(b"short")
elif mode == "empty":
    pathlib.Path(output + "{suffix}").write_bytes(b"")
elif mode == "stream":
    pathlib.Path(output + ".qdstrm").write_bytes(b"unfinished")
signalled = 0 if "{suffix}" == ".ncu-rep" else 128  # ncu gives the number of the signal itself
sys.exit(signalled - code if code < 0 else code)
'''
_TITLES = {
    "nsys": ("NVIDIA Nsight Systems version", ".nsys-rep", NSYS_REPORT),
    "ncu": ("Version", ".ncu-rep", NCU_REPORT),
}


def install(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, version: str = "2025.3.1.0"
) -> Path:
    """Put a fake tool into a folder, and make it the one that is used."""
    title, suffix, magic = _TITLES[name]
    suffix = ".qdrep" if version.startswith("2020") and name == "nsys" else suffix
    path = folder / name
    text = _TOOL.format(
        python=sys.executable, title=title, version=version, suffix=suffix, magic=magic
    )
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv(f"GPUSIGHT_{name.upper()}", str(path))
    monkeypatch.setenv("FAKE_LOG", str(folder / f"{name}.log"))
    monkeypatch.setenv("FAKE_PROGRAM", sys.executable)
    return path


def options_seen(folder: Path, name: str) -> list[str]:
    """Give the options that a fake tool was last run with."""
    return (folder / f"{name}.log").read_text().splitlines()
