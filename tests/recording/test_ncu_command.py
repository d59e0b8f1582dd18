"""Command lines of ncu: every version takes every one, and they say what was asked."""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusight import analysis, rules
from gpusight.analysis.counters.launch_quantities import LaunchQuantity
from gpusight.analysis.roofline.arithmetic_counters import TENSOR_SECTION
from gpusight.errors import UsageError
from gpusight.recording import ncu_command as options_of_ncu
from gpusight.recording.ncu_command import KernelFilter, filter_for, ncu_command, of_range
from gpusight.recording.request import NcuLevel, RecordedSteps, RecordRequest, Tool
from gpusight.recording.tools import InstalledTool, ToolVersion, installed_version
from tests import shared
from tests.recording.tool_facts import NCU

PROGRAM = ("python", "train.py", "--lr", "1")
FLAGS = {"--nvtx", "--force-overwrite"}
NEWEST = NCU["2025.3.1"].installed(from_help=True)
OLDEST = NCU["2020.3.1"].installed(from_help=True)
CHOICES: dict[str, list[Any]] = {
    "kernel": [None, "gemm|conv"],
    "base": ["function", "demangled", "mangled"],
    "launch_skip": [0, 7],
    "launch_count": [None, 3],
    "nvtx_include": [(), of_range("fwd@mine")],
    "from_start": [True, False],
    "kill": [False, True],
}
FILTERS = [
    KernelFilter(**dict(zip(CHOICES, values, strict=True)))
    for values in itertools.product(*CHOICES.values())
]


def options(argv: tuple[str, ...]) -> dict[str, list[str]]:
    assert argv[-len(PROGRAM) :] == PROGRAM
    names: dict[str, list[str]] = {}
    rest = iter(argv[1 : -len(PROGRAM)])
    for name in rest:
        assert name.startswith("--")
        values = names.setdefault(name, [])
        if name not in FLAGS:
            values.append(next(rest))
    return names


@pytest.mark.parametrize("level", NcuLevel)
@pytest.mark.parametrize("from_help", [True, False], ids=["help", "version"])
@pytest.mark.parametrize("version", NCU)
def test_every_version_takes_what_it_is_given(
    version: str, from_help: bool, level: NcuLevel
) -> None:
    facts = NCU[version]
    for chosen in FILTERS:
        command = ncu_command(
            facts.installed(from_help=from_help), PROGRAM, Path("k"), chosen, level, overwrite=True
        )
        given = options(command.argv)
        assert not facts.refused({n: v for n, v in given.items() if n != "--section"})
        assert set(given.get("--section", ())) <= facts.sections
        assert set(given.get("--set", ())) <= facts.sets.keys()
        once = {name: values for name, values in given.items() if len(values) > 1}
        assert once.keys() <= {"--section", "--nvtx-include"}  # others ncu refuses a second time


def test_a_quick_look_at_some_launches() -> None:
    chosen = KernelFilter(kernel="gemm|conv", launch_skip=10, launch_count=2, kill=True)
    command = ncu_command(NEWEST, PROGRAM, Path("out/my k"), chosen)
    assert str(command) == (
        "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT=1 "
        "/opt/ncu --clock-control none --target-processes all --section LaunchStats "
        "--section Occupancy --section SpeedOfLight --import-sass no --nvtx "
        "--kernel-name 'regex:gemm|conv' --launch-skip 10 --launch-count 2 --kill yes "
        "--export 'out/my k.ncu-rep' python train.py --lr 1"
    )
    assert command.produces == Path("out/my k.ncu-rep")
    assert command.notes == ()


def test_the_default_set_is_what_quick_measures() -> None:
    for facts in NCU.values():
        default = facts.sets.get("basic") or facts.sets["default"]
        assert set(options_of_ncu.BASIC_SECTIONS) <= set(default)


def test_detail_measures_all_that_the_rules_and_the_roofline_ask_for() -> None:
    needed = {quantity.section for quantity in _quantities()} | {TENSOR_SECTION}
    assert len(needed) > 8
    given = options(ncu_command(NEWEST, PROGRAM, Path("k"), KernelFilter(), NcuLevel.DETAIL).argv)
    assert needed <= set(given["--section"])


def _quantities() -> Iterator[LaunchQuantity]:
    for package in (analysis, rules):
        for result in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(result.name)).values()
            yield from (value for value in values if isinstance(value, LaunchQuantity))


def test_full_has_what_detail_has() -> None:
    for facts in NCU.values():
        installed = facts.installed(from_help=True)
        full = options(
            ncu_command(installed, PROGRAM, Path("k"), KernelFilter(), NcuLevel.FULL).argv
        )
        detail = options(
            ncu_command(installed, PROGRAM, Path("k"), KernelFilter(), NcuLevel.DETAIL).argv
        )
        assert full["--set"] == ["full"]
        assert set(detail["--section"]) <= {*facts.sets["full"], *full.get("--section", ())}


def test_old_versions_spell_kernels_in_their_own_way() -> None:
    chosen = KernelFilter(kernel="^gemm$", base="demangled")
    old = options(ncu_command(OLDEST, PROGRAM, Path("k"), chosen).argv)
    assert old["--kernel-regex"] == ["^gemm$"]
    assert old["--kernel-regex-base"] == ["demangled"]
    new = options(ncu_command(NEWEST, PROGRAM, Path("k"), chosen).argv)
    assert new["--kernel-name"] == ["regex:^gemm$"]
    assert new["--kernel-name-base"] == ["demangled"]


def test_ranges_reach_the_backward_pass_or_it_is_said_that_they_do_not() -> None:
    chosen = KernelFilter(nvtx_include=of_range("fwd"))
    new = ncu_command(NEWEST, PROGRAM, Path("k"), chosen)
    assert options(new.argv)["--nvtx-push-pop-scope"] == ["process"]
    assert new.notes == ()
    old = ncu_command(NCU["2024.1.1"].installed(from_help=True), PROGRAM, Path("k"), chosen)
    [note] = old.notes
    assert note.startswith("ncu 2024.1.1 filters ranges on one thread only")
    narrow = replace(chosen, process_scope=False)
    assert "--nvtx-push-pop-scope" not in ncu_command(NEWEST, PROGRAM, Path("k"), narrow).argv


def test_what_a_version_does_not_count_is_said() -> None:
    [note] = ncu_command(OLDEST, PROGRAM, Path("k"), KernelFilter(), NcuLevel.DETAIL).notes
    assert note.startswith("ncu 2020.3.1 does not count FP16 and Tensor Core operations")
    assert "2021.3 and newer" in note


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("fwd", ("fwd/", "fwd")),
        ("fwd@mine", ("mine@fwd/", "mine@fwd")),
        ("layer[0]/mlp", (r"layer\[0\]\/mlp/", r"layer\[0\]\/mlp")),
        ("a,b*c+d", (r"a\,b\*c\+d/", r"a\,b\*c\+d")),
        ("a\\b", ("a\\\\\\\\b/", "a\\\\\\\\b")),
    ],
)
def test_range_names_in_ncu_s_language(name: str, filters: tuple[str, ...]) -> None:
    assert of_range(name) == filters


@pytest.mark.parametrize("name", ["", "@mine", "regex:x", "a\\[0]", "two\nlines"])
def test_range_names_that_ncu_cannot_be_told(name: str) -> None:
    with pytest.raises(UsageError, match="cannot filter by"):
        of_range(name)


def test_a_request_chooses_launches() -> None:
    request = RecordRequest(
        PROGRAM, Tool.NCU, kernel="gemm", launch_skip=2, launch_count=5, range_name="fwd", stop=True
    )
    assert filter_for(request) == KernelFilter(
        kernel="gemm", launch_skip=2, launch_count=5, nvtx_include=("fwd/", "fwd"), kill=True
    )
    steps = filter_for(RecordRequest(PROGRAM, Tool.NCU, steps=RecordedSteps(3, 4)))
    assert steps == KernelFilter(from_start=False)
    given = options(ncu_command(NEWEST, PROGRAM, Path("k"), steps).argv)
    assert given["--profile-from-start"] == ["off"]


def test_the_user_s_own_options_take_the_place_of_ours() -> None:
    extra = ("--set", "roofline", "-c", "1", "--clock-control", "base", "--section", "Mine")
    command = ncu_command(NEWEST, PROGRAM, Path("k"), KernelFilter(launch_count=9), extra=extra)
    assert command.argv.count("--clock-control") == 1
    assert "--launch-count" not in command.argv
    # Sections of the user's own lie in the home folder, and may need machine code.
    assert command.environment == {}
    assert "--import-sass" not in command.argv
    with pytest.raises(UsageError, match="--export"):
        ncu_command(NEWEST, PROGRAM, Path("k"), KernelFilter(), extra=("--export=x",))


# With NVIDIA's own ncu, which reads its whole command line before it looks for a GPU.


def _complaints(output: str) -> list[str]:
    pattern = r"unrecogni|invalid|did not match|requires --|more than once|ambiguous|No metrics"
    return [line for line in output.splitlines() if re.search(pattern, line)]


def _said(argv: tuple[str, ...], home: Path) -> str:
    done = subprocess.run(
        argv,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def _real() -> InstalledTool:
    path = shared.tool("ncu", "nsight-compute/ncu")
    version = installed_version(path)
    assert isinstance(version, ToolVersion)
    return InstalledTool(Tool.NCU, Path(path), version)


@pytest.mark.oracle
@pytest.mark.parametrize("level", NcuLevel)
def test_ncu_itself_accepts_it(level: NcuLevel, tmp_path: Path) -> None:
    for chosen in (KernelFilter(), FILTERS[-1], FILTERS[len(FILTERS) // 2]):
        command = ncu_command(_real(), ("true",), tmp_path / "k", chosen, level, overwrite=True)
        assert _complaints(_said(command.argv, tmp_path)) == []


@pytest.mark.oracle
@pytest.mark.parametrize(
    "wrong", [("--nonsense", "1"), ("--clock-control", "up"), ("--section", "Nope")]
)
def test_ncu_itself_would_complain(wrong: tuple[str, ...], tmp_path: Path) -> None:
    assert _complaints(_said((str(_real().path), *wrong, "true"), tmp_path))
