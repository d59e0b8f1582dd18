from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.naming.kernel_names import classify
from gpusight.readers.open import open_trace
from gpusight.render.share_view import closing_sentences
from gpusight.sharing.leak_report import Category, ShareOptions, Treatment
from gpusight.sharing.share_torch import TorchCleaner
from gpusight.sharing.torch_values import hide_frame, short_frame
from gpusight.trace.schema import TABLES
from tests.shared import DATA, EVERY_TORCH_TRACE, name, needs_shared
from tests.sharing.spelled import secret, secrets_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.trace.trace import Trace

TRACES = [DATA / f"{name}.json.gz" for name in ("torch_odd", "torch_checkpoint", "operators")]
HASHED = ShareOptions(hash_names=True, salt=b"salt")
SHARE = ShareOptions(salt=b"salt")

REMOVED = {
    ("cpu_ops", "stack"),
    ("cpu_ops", "concrete"),
    ("processes", "name"),
    ("threads", "name"),
    ("python_calls", "name"),
    ("devices", "name"),
    ("collectives", "group"),
    ("collectives", "group_description"),
    ("process_groups", "group"),
    ("process_groups", "description"),
}
"""Columns of which a copy has less, or hashes."""
NAMES = {
    *REMOVED,
    ("kernels", "name"),
    ("kernels", "mangled_name"),
    ("ranges", "name"),
    ("gpu_ranges", "name"),
    ("cpu_ops", "name"),
    ("api_calls", "name"),
    ("api_calls", "symbol"),
}
"""Columns that are hashed."""


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1, "dur": 2}
CALL = {"ph": "X", "cat": "python_function", "pid": 7, "tid": 7, "ts": 1, "dur": 2}


def write_trace(path: Path, events: list[Any], **about: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": events}))
    return path


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.name.endswith(".gz") else data
    document: dict[str, Any] = json.loads(text)
    return document


def copied(path: Path, options: ShareOptions = SHARE, output: str = "copy.json") -> dict[str, Any]:
    target = path.parent / output
    TorchCleaner(path).write(target, options)
    return read(target)


def columns(trace: Trace) -> Iterator[tuple[str, str]]:
    for table, schema in TABLES.items():
        if trace.has(table):
            yield from ((table, c.name) for c in schema.columns if trace.has(table, c.name))


def differing(one: Trace, other: Trace, but: set[tuple[str, str]]) -> list[tuple[str, str]]:
    assert set(columns(one)) - but == set(columns(other)) - but
    return [
        (table, column)
        for table, column in columns(one)
        if (table, column) not in but and texts(one, table, column) != texts(other, table, column)
    ]


def texts(trace: Trace, table: str, column: str) -> list[Any]:
    series = trace.table(table, [column])[column]
    return (series.cast(pl.String) if isinstance(series.dtype, pl.Enum) else series).to_list()


# The copy answers like the original -------------------------------------------------------------


def check_tables(path: Path, copy: Path) -> None:
    TorchCleaner(path).write(copy, SHARE)
    assert differing(open_trace(path, cache=False), open_trace(copy, cache=False), REMOVED) == []


@pytest.mark.parametrize("path", TRACES, ids=name)
def test_a_copy_has_the_same_tables(path: Path, tmp_path: Path) -> None:
    check_tables(path, tmp_path / "copy.json.gz")


@needs_shared
@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_every_copy_has_the_same_tables(path: Path, tmp_path: Path) -> None:
    check_tables(path, tmp_path / "copy.json.gz")


@pytest.mark.parametrize("path", TRACES, ids=name)
def test_hashed_names_change_nothing_else(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    TorchCleaner(path).write(copy, HASHED)
    one, other = open_trace(path, cache=False), open_trace(copy, cache=False)
    assert differing(one, other, NAMES) == []
    for table in ("kernels", "cpu_ops", "ranges"):
        if one.has(table):
            names, hashed = (Counter(texts(t, table, "name")).values() for t in (one, other))
            assert sorted(names) == sorted(hashed), table
    kinds = [[classify(n).category for n in texts(t, "kernels", "name")] for t in (one, other)]
    assert kinds[0] == kinds[1]


def test_events_keep_their_order_and_their_digits(tmp_path: Path) -> None:
    times = ["1.000", "0.5", "3e2", "12345678901.250"]
    events = [{**OPERATOR, "ts": f"<{time}>", "dur": "<1.50>"} for time in times]
    path = write_trace(tmp_path / "trace.json", events)
    path.write_text(path.read_text().replace('"<', "").replace('>"', ""))
    TorchCleaner(path).write(tmp_path / "copy.json", SHARE)
    copy = (tmp_path / "copy.json").read_text()
    places = [copy.index(f'"ts":{time},"dur":1.50') for time in times]
    assert places == sorted(places)


# What is left behind ------------------------------------------------------------------------------


def test_only_sizes_and_switches_of_arguments_are_kept(tmp_path: Path) -> None:
    values = [
        "",
        "[2, -1]",
        "0.1",
        "True",
        "cuda:0",
        "123456789012",
        "[1, 0.5]",
        "9223372036854775807",
    ]
    event = {**OPERATOR, "args": {"Concrete Inputs": values, "Input type": ["float", "Acme", ""]}}
    path = write_trace(tmp_path / "trace.json", [event])
    arguments = copied(path)["traceEvents"][0]["args"]
    assert arguments["Concrete Inputs"] == ["", "[2, -1]", "", "True", "", "", "", values[-1]]
    assert arguments["Input type"] == ["float", "", ""]


def test_the_date_is_taken_out_of_the_clock(tmp_path: Path) -> None:
    starts = ["1700000000123456.5", "1700000000123457", "1699999999000000.001"]
    events = json.dumps([{**OPERATOR, "ts": f"<{start}>"} for start in starts])
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": {events}}}'.replace('"<', "").replace('>"', ""))
    copy = copied(path)
    shown = [event["ts"] for event in copy["traceEvents"]]
    assert [round(t - shown[0], 3) for t in shown] == [0, 0.5, -1123456.499]
    assert all(abs(t) < 1e12 for t in shown)
    leaks = TorchCleaner(path).scan(SHARE).leaks
    assert [(x.where, x.treatment) for x in leaks if x.category is Category.CAPTURE_TIME] == [
        ("ts", Treatment.REMOVED)
    ]


@pytest.mark.parametrize(
    "value",
    [
        '["1760000000000777"]',
        "[1760000000000777]",
        '"1760000000000777-"',
        "[[1], 1760000000000777]",
    ],
)
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_what_is_no_number_is_no_time(key: str, value: str, tmp_path: Path) -> None:
    events = json.dumps([OPERATOR, {**OPERATOR, key: "<>"}])
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": {events}}}'.replace('"<>"', value))
    assert "1760000000000777" not in json.dumps(copied(path))
    leaks = TorchCleaner(path).scan(SHARE).leaks
    assert [(x.where, x.treatment) for x in leaks if x.category is Category.UNKNOWN] == [
        (f"{key}: no number", Treatment.REMOVED)
    ]


def test_a_time_of_a_billion_digits_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = json.dumps([{**OPERATOR, "ts": "<>"}, OPERATOR])
    path.write_text(f'{{"traceEvents": {events}}}'.replace('"<>"', "1e999999999"))
    assert [event["ts"] for event in copied(path)["traceEvents"]] == [None, 1]


def test_names_of_processes_and_threads_are_kept_where_everyone_has_them(tmp_path: Path) -> None:
    def named(kind: str, text: str) -> dict[str, Any]:
        key = "labels" if kind == "process_labels" else "name"
        return {"ph": "M", "name": kind, "pid": 7, "tid": 8, "ts": 0, "args": {key: text}}

    kept = [
        named("process_name", "python3.11"),
        named("thread_name", "thread 123456789 (pt_autograd_0)"),
        named("thread_name", "stream 7 "),
        named("process_labels", "GPU 3"),
    ]
    left = [named("process_name", "acme_server"), named("thread_name", "thread 1 (acme)")]
    path = write_trace(tmp_path / "trace.json", [*kept, *left, OPERATOR])
    assert copied(path)["traceEvents"] == [*kept, OPERATOR]
    leaks = {(x.category, x.count, x.treatment) for x in TorchCleaner(path).scan(SHARE).leaks}
    assert (Category.PROCESSES, 1, Treatment.REMOVED) in leaks
    assert (Category.THREAD_NAMES, 1, Treatment.REMOVED) in leaks


def test_tracks_with_labels_stay_apart(tmp_path: Path) -> None:
    tracks = ["acme 7", "acme 8", "acme 7", "stream 7", "7", 7]
    path = write_trace(tmp_path / "trace.json", [{**OPERATOR, "tid": track} for track in tracks])
    shown = [event["tid"] for event in copied(path)["traceEvents"]]
    assert shown[0] == shown[2] != shown[1]
    assert shown[3:] == tracks[3:]
    assert "acme" not in str(shown)


@pytest.mark.parametrize(
    ("frame", "shown"),
    [
        ("/home/jane/work/train.py(12): main", "~/train.py(12): main"),
        (r"C:\Users\jane\train.py(12): main", "~/train.py(12): main"),
        ("train.py(12): main", "train.py(12): main"),
        ("/opt/x/site-packages/torch/nn/modules/linear.py(1): forward", None),
        ("/usr/lib/python3.11/queue.py(1): get", "queue.py(1): get"),
        ("/home/jane/work/queue.py(1): get", "~/queue.py(1): get"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("<built-in function len>", "<built-in function len>"),
        ("/home/jane/odd", "odd"),
    ],
)
def test_frames_lose_their_folders(frame: str, shown: str | None) -> None:
    assert short_frame(frame) == (shown or "torch/nn/modules/linear.py(1): forward")
    assert "jane" not in hide_frame(frame, b"k")


def test_hashed_frames_keep_their_form() -> None:
    assert hide_frame("/x/site-packages/torch/optim/adam.py(3): step", b"k").startswith(
        "torch/optim/"
    )
    assert hide_frame("nn.Module: AcmeNet_3", b"k").endswith("_3")
    assert hide_frame("<built-in method secret_call of Acme>", b"k").startswith("<built-in method ")


def test_names_of_python_functions_are_the_programs_own_words(tmp_path: Path) -> None:
    names = ["/srv/acme/train.py(3): fit", "nn.Module: AcmeNet_0", "<built-in function len>"]
    path = write_trace(tmp_path / "trace.json", [{**CALL, "name": name} for name in names])
    assert [event["name"] for event in copied(path)["traceEvents"]] == [
        "~/train.py(3): fit",
        *names[1:],
    ]
    view = gs.share_check(path)
    assert {(x.category, x.count, x.treatment) for x in view.leaks} >= {
        (Category.PYTHON_FUNCTIONS, 1, Treatment.SHORTENED),
        (Category.PYTHON_FUNCTIONS, 2, Treatment.KEPT),
    }
    assert "It would keep: 3 names of Python functions." in closing_sentences(view.answer)
    hashed = str(copied(path, HASHED, "hashed.json")["traceEvents"])
    assert "nn.Module: " in hashed
    assert not any(word in hashed for word in ("Acme", "fit", "acme"))


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ("0", True),
        ("default_pg", True),
        ("mesh_dp_shard_cp", True),
        ("TENSOR_MODEL_PARALLEL_GROUP", True),
        ("tp:0", True),
        ("undefined", True),
        ("node7", False),
        ("gpu12.acme.com", False),
        ("10.0.0.12", False),
        ("job 4711234", False),
        ("alice_dp", False),
    ],
)
def test_groups_of_processes_keep_no_name_that_someone_chose(
    group: str, kept: bool, tmp_path: Path
) -> None:
    keys = ("Process Group Name", "Process Group Description")
    event = {**OPERATOR, "args": dict.fromkeys(keys, group)}
    config = [{"pg_name": group, "pg_desc": group}]
    path = write_trace(tmp_path / "t.json", [event], distributedInfo={"pg_config": config})
    copy = copied(path)
    values = {*copy["traceEvents"][0]["args"].values()}
    values |= {*copy["distributedInfo"]["pg_config"][0].values()}
    assert len(values) == 1, "equal names stay equal"
    assert (values == {group}) is kept
    leaks = TorchCleaner(path).scan(SHARE).leaks
    assert (
        any(x.where == f"args: {keys[0]}" and x.treatment is Treatment.HASHED for x in leaks)
        is not kept
    )


def test_an_address_is_no_label_of_a_profiler(tmp_path: Path) -> None:
    label = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "10.0.0.12"}}
    path = write_trace(tmp_path / "trace.json", [label, OPERATOR])
    assert copied(path)["traceEvents"] == [OPERATOR]


def test_unknown_kinds_of_events_are_left_behind(tmp_path: Path) -> None:
    unknown = [
        {"ph": "C", "name": "acme", "pid": 1, "ts": 1, "args": {"x": 1}},
        {"ph": "X", "cat": "acme_things", "name": "acme", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
        {"ph": "i", "name": "acme", "pid": 1, "ts": 1},
        {"ph": "M", "name": "acme", "pid": 1, "args": {"name": "acme"}},
    ]
    path = write_trace(tmp_path / "trace.json", [*unknown, OPERATOR])
    assert copied(path)["traceEvents"] == [OPERATOR]
    unknowns = [x for x in TorchCleaner(path).scan(SHARE).leaks if x.category is Category.UNKNOWN]
    assert [(x.where, x.count) for x in unknowns] == [("kinds of events", 4)]


@pytest.mark.parametrize("options", [SHARE, HASHED])
def test_looking_and_writing_count_the_same(options: ShareOptions, tmp_path: Path) -> None:
    cleaner = TorchCleaner(TRACES[0])
    assert cleaner.scan(options) == cleaner.write(tmp_path / "copy.json.gz", options)


def test_copies_with_equal_salt_can_be_compared(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", [{**OPERATOR, "name": "acme::secret_op"}])
    names = [
        copied(path, ShareOptions(hash_names=True, salt=salt), f"{n}.json")["traceEvents"][0][
            "name"
        ]
        for n, salt in enumerate((b"a", b"a", b"b", b""))
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


# Secrets in every text ----------------------------------------------------------------------------

KEPT_NAMES = {
    "cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset",
    "cuda_runtime", "cuda_driver", "python_function",
}  # fmt: skip
"""Categories whose names are kept unless they are hashed."""
KEPT_KEYS = {"kernel", "kernel_name"}
"""Arguments of which the same holds."""
NUMBERS = {"pid", "tid", "ts", "dur", "id", "bytes", "In split size", "Out split size",
           "Process Group Ranks", "finished"}  # fmt: skip
"""Keys whose numbers may be written as text."""


class Planting:
    """Plants a secret of its own in each text, and knows where each may be found again."""

    def __init__(self, write: Callable[[str, str], str]) -> None:
        self.write = write
        self.secrets: list[str] = []
        self.kept: set[str] = set()

    def text(self, old: str, *, kept: bool = False) -> str:
        self.secrets.append(secret(len(self.secrets)))
        if kept:
            self.kept.add(self.secrets[-1])
        return self.write(old, self.secrets[-1])

    def anywhere(self, value: Any, key: str = "", kept: frozenset[str] = frozenset()) -> Any:
        if isinstance(value, str):
            return self.text(value, kept=key in kept)
        if isinstance(value, list):
            return [self.anywhere(item, key, kept) for item in value]
        if isinstance(value, dict):
            planted = {k: self.anywhere(v, k, kept) for k, v in value.items()}
            return {**planted, self.text(""): self.text("")}
        return value

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        planted = self.anywhere(
            {k: v for k, v in event.items() if k not in ("ph", "cat", "name", "args")}
        )
        arguments = self.anywhere(event.get("args", {}), kept=frozenset(KEPT_KEYS))
        same = {key: event[key] for key in ("ph", "cat") if key in event}
        label = event.get("name", "")
        if event["ph"] != "M" and label != "[memory]":
            label = self.text(label, kept=event.get("cat") in KEPT_NAMES)
        return {**same, **planted, "name": label, "args": arguments}


def sample(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A few events of every kind that the trace has, and what stands beside them."""
    document = read(path)
    counts: Counter[Any] = Counter()
    events = []
    for event in document.pop("traceEvents"):
        kind = (event["ph"], event.get("cat"), *event, *event.get("args", {}))
        counts[kind] += 1
        if counts[kind] <= 2:
            events.append(event)
    return document, events


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("output", ["copy.json", "copy.json.gz"])
@pytest.mark.parametrize("way", ["instead", "behind", "before"])
def test_no_secret_is_in_the_copy(way: str, output: str, hashed: bool, tmp_path: Path) -> None:
    ways = {
        "instead": lambda _old, new: new,
        "behind": lambda old, new: f"{old}{new}",
        "before": lambda old, new: f"/home/{new}/{old}" if "py(" in old else f"{new} {old}",
    }
    planting = Planting(ways[way])
    about, events = sample(TRACES[0])
    about |= {"host_name": "h", "distributedInfo": {"backend": "nccl", "pg_config": [
        {"pg_name": "g", "pg_desc": "d", "backend_config": "c", "x": ["y"]}]}}  # fmt: skip
    planted = [planting.event(event) for event in events]
    strange = [{**e, "cat": planting.text("kernel")} for e in events if e.get("cat") == "kernel"]
    odd = [{**e, "ph": planting.text("X")} for e in events[:5]]
    document = planting.anywhere(about)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**document, "traceEvents": [*planted, *strange, *odd]}))
    assert len(planting.secrets) > 400
    TorchCleaner(path).write(tmp_path / output, HASHED if hashed else SHARE)
    left = secrets_in((tmp_path / output).read_bytes(), planting.secrets)
    assert left <= (set() if hashed else planting.kept)
    if not hashed and way == "behind":
        assert left, "names are kept, so the test can find what is there"


def test_long_numbers_written_as_text_are_secrets_too(tmp_path: Path) -> None:
    _, events = sample(TRACES[0])
    numbers: list[str] = []

    def plant(value: Any, key: str) -> Any:
        if isinstance(value, str) and key not in NUMBERS:
            numbers.append(f"4111{len(numbers):012d}")
            return numbers[-1]
        if isinstance(value, list):
            return [plant(item, key) for item in value]
        return {k: plant(v, k) for k, v in value.items()} if isinstance(value, dict) else value

    planted = [
        {key: value if key in ("ph", "cat") else plant(value, key) for key, value in event.items()}
        for event in events
        if event["ph"] == "X"
    ]
    path = write_trace(tmp_path / "trace.json", planted)
    TorchCleaner(path).write(tmp_path / "copy.json", HASHED)
    assert len(numbers) > 100
    assert secrets_in((tmp_path / "copy.json").read_bytes(), numbers) == set()


# Other files --------------------------------------------------------------------------------------


def test_a_trace_that_is_cut_off_gives_a_whole_copy(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    whole = gzip.decompress(TRACES[0].read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    scan = TorchCleaner(path).write(tmp_path / "copy.json", SHARE)
    assert len(read(tmp_path / "copy.json")["traceEvents"]) > 100
    assert "cut off" in scan.notes[0]


def test_texts_that_are_not_utf8_are_cleaned_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = json.dumps({**OPERATOR, "args": {"x": "SECRET\\", "External id": 3}}).encode()
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[%b]}' % event.replace(b"mm", b"\xff\xfe"))
    kept = copied(path)["traceEvents"]
    assert [e["args"] for e in kept] == [{"External id": 3}]


@pytest.mark.parametrize(
    "document",
    [
        {"traceEvents": [{"ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]},
        {"otherData": {"writer": "gpusight"}, "traceEvents": [OPERATOR]},
        {"traceEvents": []},
        {"something": 1},
    ],
)
def test_other_chrome_traces_are_refused_and_leave_nothing(
    document: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with pytest.raises(NotACaptureError):
        gs.share(path, tmp_path / "copy.json")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["[" * 200_000, "[1, 2, 3]", "[]"])
def test_a_list_of_something_else_is_not_called_a_trace(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(NotACaptureError, match=r"is not a trace: it holds no events; share takes"):
        TorchCleaner(path).scan(SHARE)


def test_an_event_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + b"[" * 9_000_000)
    with pytest.raises(DamagedCaptureError):
        TorchCleaner(path).scan(SHARE)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text("mine")
    with pytest.raises(FileExistsError):
        TorchCleaner(TRACES[0]).write(tmp_path / "copy.json", SHARE)
    assert (tmp_path / "copy.json").read_text() == "mine"
