"""Wall-clock timings from CSV files that anyone may have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusight.analysis.questions.forward_time import read_timings
from gpusight.errors import UsageError
from gpusight.readers.file_blocks import read_timings_file

MEASURED_NS = 14e6


@pytest.mark.parametrize(
    ("text", "mean_ns", "repeats"),
    [
        ("forward_ms\n14\n15\n", 14.5e6, 2),
        ("time_s\n0.014\n", 14e6, 1),
        ("run;Forward (µs)\n1;14000\n2;15000\n", 14.5e6, 2),
        ("time\n0.014\n0.016\n", 15e6, 2),
        ("time\n14\n16\n", 15e6, 2),
        ("0.014\n0.016\n", 15e6, 2),
        ("latency\n14 ms\n16 ms\n", 15e6, 2),
        ("mean_ms,std_ms\n14.2,0.3\n", 14.2e6, 1),
        ("mode,mean_ms\nforward,14\nforward_backward,40\n", 14e6, 1),
        ("pass,seconds\nfwd,0.014\nbwd,0.03\nFwd,0.016\n", 15e6, 2),
        ("step,backward_ms,forward_ms,total_ms\n0,30,14,44\n1,30,16,46\n", 15e6, 2),
        ("forwardMs\t std\n1,400.5\t1\n", 1400.5e6, 1),
        ("# a comment\ntime_ms\n14\n\nnan\n-3\n16\n", 15e6, 2),
        ("time_per_step_ms\n14\n", 14e6, 1),
    ],
)
def test_times_units_and_rows(text: str, mean_ns: float, repeats: int) -> None:
    result, _ = read_timings(text, "t.csv").near(MEASURED_NS)
    assert result["mean_ns"] == pytest.approx(mean_ns)
    assert result["repeats"] == repeats


def test_deviation_is_of_the_repeats_or_as_given() -> None:
    assert read_timings("ms\n1\n3\n", "t").near(None)[0]["stddev_ns"] == pytest.approx(2**0.5 * 1e6)
    assert read_timings("mean_ms,std_ms\n5,0.5\n", "t").near(None)[0]["stddev_ns"] == 0.5e6
    assert read_timings("ms\n5\n", "t").near(None)[0]["stddev_ns"] is None


def test_what_is_assumed_is_said() -> None:
    _, notes = read_timings("time\n14\n", "t").near(MEASURED_NS)
    assert notes == ("the timings name no unit: column 'time' is taken as ms",)
    _, notes = read_timings("size,time_ms\nsmall,1\nlarge,9\n", "t").near(None)
    assert notes == ("the timings differ in size and are averaged: keep only the rows of this run",)
    _, notes = read_timings("run,time_ms\n1,1\n2,\n", "t").near(None)
    assert notes == ("1 rows of the timings hold no time: left out",)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "t.csv holds no timings"),
        ("model,size\ngpt,12\n", "no column of t.csv is a time"),
        ("forward_ms\nfast\n", "no column of t.csv is a time"),
        ("mode,ms\nbackward,3\ntrain,9\n", "no row of t.csv times a forward pass"),
    ],
)
def test_files_without_timings(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_timings(text, "t.csv")


@pytest.mark.parametrize(
    ("text", "mean_ns"),
    [
        ("forward_ms;x\n1,5;2\n", 1.5e6),
        ("forward_ms\n1,5\n", 1.5e6),
        ('forward_ms,x\n"1,5",2\n', 1.5e6),
        ('forward_ms,x\n"1,400",2\n', 1400e6),
        ("forward_ms;x\n1.400,5;2\n", 1400.5e6),
        ("forward_ms;x\n1,400.5;2\n", 1400.5e6),
        ("forward_ms;x\n1,400,000;2\n", 1.4e12),
        ('"forward\nms",x\n14,2\n', 14e6),
    ],
)
def test_a_comma_is_decimal_unless_commas_separate(text: str, mean_ns: float) -> None:
    assert read_timings(text, "t").near(None)[0]["mean_ns"] == pytest.approx(mean_ns)


def test_a_comma_that_may_separate_thousands_is_told() -> None:
    _, notes = read_timings("forward_ms;x\n1,400;2\n", "t").near(None)
    assert notes == (
        "commas in column 'forward_ms' of the timings are decimal: 1,400 is no thousand",
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("forward_ms,x\n1,5,2\n", "more cells than there are headings"),
        ("1,5\n2,5\n", "no column of t.csv is named like a time"),
        ("forward_ms\n1 400\n", "no column of t.csv is a time"),
        ("forward_ms\n1e308\n1e308\n", "holds 1e[+]308, too long for a forward pass"),
        ("time\n5e-324\n", "holds 5e-324, too long for a forward pass"),
        ("mean_ms,std_ms\n5,1e308\n", "holds 1e[+]308, too long for a forward pass"),
        ('forward_ms,x\n"1.2,3\n', "t.csv is no CSV file: row 2"),
        (f"forward_ms\n{'1' * 140_000}\n", "t.csv is no CSV file: row 2: field larger"),
        ("forward_ms\n" + "1\n" * 1_000_001, "more than 1,000,000 rows"),
        (",".join(f"c{n}" * 50 for n in range(20_000)) + "\n1\n", "and 19,992 more"),
        ("mode,ms\n" + "".join(f"train {'x' * 900}{n},1\n" for n in range(99)), "and 91 more"),
    ],
)
def test_what_cannot_be_read_is_one_short_line(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as error:
        read_timings(text, "t.csv")
    assert len(str(error.value)) < 600
    assert "\n" not in str(error.value)


def test_files_of_old_spreadsheets_have_their_micro(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"forward_\xb5s\n1500\n")
    assert read_timings(read_timings_file(path), "t").near(None)[0]["mean_ns"] == 1.5e6
