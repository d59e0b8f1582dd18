"""Kernel-info files read as the scheduler reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.analysis.orion.orion_rows import check, problems
from gpusight.errors import NotACaptureError
from tests.analysis.orion.orion_reports import facts, section
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "Name,Profile,Memory_footprint,SM_usage,Duration\n"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("f(int, int),1,0,3,12", "1 comma in the name"),
        ("f,1,0,3", "4 fields, not 5"),
        ("f,x,0,3,12", "Profile is 'x', not a whole number"),
        ("f,1,0,3.5,12", "SM_usage is '3.5', not a whole number"),
        ("f,1,0,3,nan", "Duration is 'nan', not a number"),
        ("f,1,0,3,1_000", "Duration is '1_000', not a number"),
        ("f,2,0,3,12", "Profile is 2, not 1, 0 or -1"),
        ("f,1,0,0,12", "SM_usage is 0: a kernel needs at least one SM"),
        ("f,1,0,99999999999,12", "SM_usage is '99999999999', not a whole number"),
        (",1,0,3,12", "no name"),
        ("", "empty line"),
    ],
)
def test_broken_rows(row: str, problem: str) -> None:
    result = check(f"{HEADER}g,0,0,1,5\n{row}\nh,-1,0,1,5.5\n", "x")
    rows = section(result, "broken").rows(named=True)
    assert [(r["line"], r["problem"]) for r in rows] == [(3, problem)]
    assert problems(result) == 1
    assert facts(result)["rows"] == 3


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}f,1,0,3,12\n",
        f"{HEADER}f,1,0,3,12",
        f"\ufeff{HEADER}f, 1,0,3,1.2e3\n".replace("\n", "\r\n"),
        f"{HEADER.strip()},Block,Grid\nf,-1,0,3,12,128,64\n",
        HEADER,
    ],
)
def test_sound_files(text: str) -> None:
    result = check(text, "x")
    assert problems(result) == 0
    assert result.meta["sound"] is True


def test_a_file_without_a_header_loses_its_first_kernel() -> None:
    result = check("f,1,0,3,12\ng,1,0,3,12\n", "x")
    assert section(result, "broken")["line"].to_list() == [1]
    assert facts(result)["rows"] == 2


def test_the_number_of_rows() -> None:
    text = f"{HEADER}f,1,0,3,12\n"
    assert problems(check(text, "x", 1)) == 0
    assert problems(check(text, "x", 2)) == 1


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\n1,2,3\n", "{}"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(NotACaptureError, match="not a kernel-info file"):
        check(text, "x")


@needs_shared
@pytest.mark.parametrize(
    "path", sorted((SHARED / "public" / "orion").glob("*")), ids=lambda p: p.name
)
def test_files_that_the_scheduler_ships(path: Path) -> None:
    broken = {"resnet50_32_fb1_new": 53, "resnet50_train_bs32": 22}
    result = check(path.read_text(encoding="utf-8"), path.name)
    assert problems(result) == broken.get(path.name, 0)
