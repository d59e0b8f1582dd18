"""What `perf script` prints: native frames, and those of Python with `-X perf`."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpusight as gs
from gpusight.errors import CaptureError
from gpusight.readers.open import open_trace
from gpusight.readers.stacks.perf_script import is_perf_script

TEXT = """\
# captured on a machine
python 4711  12.000100:    5000000 cpu-clock:
\t    7f01 malloc_inner+0x5 (inlined)
\t    7f02 _PyObject_Malloc+0x4 (/usr/lib/libpython3.12.so.1.0 (deleted))
\t    7f03 py::Loader.collate:/home/me/train.py+0x5 (/tmp/perf-4711.map)
\t    7f04 py::<module>:/home/me/train.py+0x5 (/tmp/perf-4711.map)

pt main thread 4711/4720 [003]  12.010100:    5000000 cpu-clock:u:
\t    8001 decode(unsigned char*, int)+0x10 (/opt/app/decoder)
\t       0 [unknown] ([unknown])

python 4711  12.020100:    5000000 cpu-clock:
\t    7f05 [unknown] (/usr/lib/libcuda.so.1)
\t    7f03 py::Loader.collate:/home/me/train.py+0x5 (/tmp/perf-4711.map)
"""


def test_samples_with_native_and_python_frames(tmp_path: Path) -> None:
    path = tmp_path / "host.perf"
    path.write_text(TEXT)
    trace = open_trace(path, cache=False)
    trace.validate()
    samples = trace.table("stack_samples")
    assert samples["time_ns"].to_list() == [0, 10_000_000, 20_000_000]
    assert samples["weight_ns"].to_list() == [5_000_000] * 3
    assert [str(name) for name in trace.table("threads")["name"]] == [
        "python (4711)",
        "pt main thread (4720)",
    ]
    rows = gs.hotspots(trace).rows()
    assert [(row["function"], row["module"], row["samples"]) for row in rows] == [
        ("Loader.collate", "train", 2),
        ("decode(unsigned char*, int)", "decoder", 1),
    ]
    innermost = {
        row["function"]: row["module"] for row in gs.hotspots(trace, all_frames=True).rows()
    }
    assert innermost["malloc_inner"] == "libpython3.12.so.1.0"
    assert innermost["[libcuda.so.1]"] == "libcuda.so.1"


def test_other_events_count_the_usual_time_between_samples(tmp_path: Path) -> None:
    path = tmp_path / "cycles.perf"
    heads = [
        f"app 7  1.00{at}000:  {100 + at} cycles:ppp:\n\t 1 f (/bin/app)\n" for at in (1, 3, 5)
    ]
    path.write_text("\n".join(heads))
    samples = open_trace(path, cache=False).table("stack_samples")
    assert samples["weight_ns"].to_list() == [2_000_000] * 3


def test_lines_that_are_not_perfs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "odd.perf"
    path.write_text(TEXT + "\nnonsense\n\tfoo\n\npython 1  3.000000: 1 cpu-clock:\n\t no frame\n")
    warnings = open_trace(path, cache=False).meta.warnings
    assert warnings == ("3 lines are not those of perf script, left out",)


@pytest.mark.parametrize("text", ["", "a;b 3\nc 4\n", "python 1  3.0: 1 x:\n", "\n\n\t1 f (x)\n"])
def test_other_texts_are_not_taken_for_it(text: str) -> None:
    assert not is_perf_script(text.encode())


def test_the_recording_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(200))
    with pytest.raises(CaptureError, match="a recording of perf"):
        open_trace(path, cache=False)


def test_long_lines_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / "long.perf"
    hostile = "\t1 " + "a (" * 2_000 + "\n" + "x " * 3_000 + "1.000000:\n"
    path.write_text(TEXT + hostile * 200 + "\n")
    assert gs.hotspots(path).rows()
