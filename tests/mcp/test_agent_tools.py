from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.cli.main import build_parser, main
from gpusight.mcp.agent_tools import TOOLS, tools_of
from gpusight.mcp.tool_answers import count_tokens
from gpusight.mcp.workspace import Workspace
from gpusight.naming.kernel_names import unique_short_names
from tests.mcp.agent_captures import ORDER, call, capture_with_orders, refused
from tests.mcp.planted import (
    JOBS,
    KERNELS,
    program_captures,
    solve_job,
    solve_kernels,
    solve_program,
)
from tests.shared import DATA, SHARED, needs_shared

TIMELINE = "dataload.sqlite"
REPORT = "two_processes.ncu-rep.xz"


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with closing(Workspace([DATA])) as opened:
        yield opened


def test_open_lists_and_describes_captures(workspace: Workspace) -> None:
    listed = {item["capture"] for item in call(workspace, "open")["captures"]}
    assert {"`dataload.sqlite`", "`healthy.json.gz`"} <= listed
    about = call(workspace, "open", capture=TIMELINE)
    assert about["gpus"] == ["`NVIDIA H200`"]
    assert about["rows"]["kernels"] == 370
    assert f"`{REPORT}`" in listed
    report = call(workspace, "open", capture=REPORT)
    assert [process["profiles"] for process in report["processes"]] == [2, 2]


def test_diagnose_has_the_plan_of_the_command(workspace: Workspace) -> None:
    answer = call(workspace, "diagnose", capture=TIMELINE)
    timeline = gs.diagnose(DATA / TIMELINE).timeline
    assert timeline is not None
    assert [fix["id"] for fix in answer["fixes"]] == [finding.rule for finding in timeline.plan]
    saved = sum(fix["saves_ms_per_step"] for fix in answer["fixes"])
    predicted = answer["now_ms_per_step"] - answer["after_all_fixes_ms_per_step"]
    assert saved == pytest.approx(predicted, rel=0.01)
    assert sum(answer["ledger_percent"].values()) == pytest.approx(100, abs=1)


def test_a_fix_without_a_time_estimate_does_not_save_zero(workspace: Workspace) -> None:
    fixes = call(workspace, "diagnose", capture="odd_node.sqlite")["fixes"]
    [startup] = [fix for fix in fixes if fix["id"] == "startup-bound"]
    assert startup["saves_ms_per_step"] == "no time estimate"


def test_every_id_of_an_answer_is_explained(workspace: Workspace) -> None:
    plan = call(workspace, "diagnose", capture=TIMELINE)
    ids = [fix["id"] for fix in plan["fixes"]] + list(plan["ledger_percent"])
    for which in ids:
        answer = call(workspace, "explain", capture=TIMELINE, id=which)
        assert answer["id"] == which
    finding = call(workspace, "explain", capture=TIMELINE, id=plan["fixes"][0]["id"])
    assert "gpusight compare" in finding["verify"]
    for place in finding["locations"]:
        event = call(workspace, "explain", capture=TIMELINE, id=place["id"])
        assert place["id"] in event["in_serve"]
        assert event["related"]


def test_a_finding_has_its_lines_of_code(workspace: Workspace) -> None:
    answer = call(workspace, "explain", capture="torch_odd.json.gz", id="host-sync")
    assert answer["lines"][0]["line"] == "`torch_odd.py:47 step`"
    assert answer["lines"][0]["percent"] == 100


def test_ids_are_those_of_the_command_line() -> None:
    page = gs.explain(DATA / TIMELINE, "kernels:17")
    assert page.meta is not None
    assert "kernels:17" in page.title
    entry = gs.explain(DATA / TIMELINE, "ledger:idle/input")
    assert entry.frame["name"].to_list() == ["data", "random normal"]
    with pytest.raises(gs.errors.UsageError, match="entries are compute/matmul"):
        gs.explain(DATA / TIMELINE, "ledger:nothing")


def test_kernels_of_a_report_are_numbered_as_explained(tmp_path: Path) -> None:
    report = tmp_path / "thrice.ncu-rep.xz"
    shutil.copyfile(DATA / "thrice.ncu-rep.xz", report)
    with closing(Workspace([tmp_path])) as workspace:
        plan = call(workspace, "diagnose", capture=report.name)
        for kernel in plan["kernels"]:
            if "id" in kernel:
                answer = call(workspace, "explain", capture=report.name, id=kernel["id"])
                assert answer["kernel"] == kernel["kernel"]
                assert answer["title"] == kernel["title"]


def test_whatif_predicts_as_the_command_does(workspace: Workspace) -> None:
    answer = call(
        workspace, "whatif", capture=TIMELINE, changes=["apply input-starved", "remove sync"]
    )
    made = gs.whatif(DATA / TIMELINE, changes=[("apply", "input-starved"), ("remove", "sync")])
    predicted = made.to_dict()["changed_ns"] / 10
    assert answer["then_ms_per_step"] == pytest.approx(predicted / 1e6, rel=0.01)
    assert "changes are speedup" in refused(
        workspace, "whatif", capture=TIMELINE, changes=["explode everything"]
    )


def test_compare_names_what_changed(workspace: Workspace) -> None:
    answer = call(workspace, "compare", before=[TIMELINE], after=["dataload.nsys-rep"])
    result = gs.compare(DATA / TIMELINE, DATA / "dataload.nsys-rep").to_dict()
    assert answer["step_time"]["verdict"].startswith(result["verdict"]["step_time"]["verdict"])
    assert {"rule": "input-starved", "fate": "stayed"}.items() <= next(
        f for f in answer["findings"] if f["rule"] == "input-starved"
    ).items()


@pytest.mark.parametrize(
    ("sql", "rows", "first_page"),
    [
        ("SELECT end_ns, start_ns FROM kernels ORDER BY start_ns", 370, range(300, 301)),
        # Long rows: as many as an answer has room for.
        ("SELECT name, start_ns FROM kernels ORDER BY start_ns LIMIT 50", 50, range(20, 40)),
    ],
)
def test_query_has_a_limit_and_pages(
    workspace: Workspace, sql: str, rows: int, first_page: range
) -> None:
    answer = call(workspace, "query", capture=TIMELINE, sql=sql, limit=300)
    assert answer["rows_of_query"] == rows
    assert len(answer["rows"]) in first_page
    found = answer["rows"]
    while cursor := answer.get("cursor"):
        answer = call(workspace, "query", capture=TIMELINE, sql=sql, limit=300, cursor=cursor)
        assert answer["rows"]
        found += answer["rows"]
    assert len(found) == rows
    starts = [row[1] for row in found]
    assert starts == sorted(starts)


def test_a_query_that_names_no_column_gets_the_columns(workspace: Workspace) -> None:
    assert "start_ns" in refused(
        workspace, "query", capture=TIMELINE, sql="SELECT nothing FROM kernels"
    )


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM read_csv('/etc/passwd')", "DROP TABLE kernels", "COPY kernels TO 'x'"]
)
def test_query_reads_the_capture_only(workspace: Workspace, sql: str) -> None:
    refused(workspace, "query", capture=TIMELINE, sql=sql)


def test_window_adds_up_what_runs(workspace: Workspace) -> None:
    answer = call(workspace, "window", capture=TIMELINE, start_ms=20, end_ms=40)
    [gpu] = answer["gpus"]
    assert sum(gpu["kinds_ms"].values()) == pytest.approx(20 * gpu["busy_percent"] / 100, rel=0.01)
    assert answer["longest_events"][0]["name"] == "`step_1`"
    launched = gs.open(DATA / TIMELINE).kernels
    for kernel in answer["kernels"]:
        assert call(workspace, "explain", capture=TIMELINE, id=kernel["longest"])["kind"]
        name = str(launched["name"][int(kernel["longest"].partition(":")[2])])
        assert kernel["name"].strip("`").startswith(unique_short_names([name])[name])
    assert "end after it starts" in refused(
        workspace, "window", capture=TIMELINE, start_ms=20, end_ms=20
    )
    assert "the capture is from" in refused(
        workspace, "window", capture=TIMELINE, start_ms=1e9, end_ms=2e9
    )


def test_programs_run_only_where_allowed(workspace: Workspace, tmp_path: Path) -> None:
    assert "--allow-run" in refused(workspace, "record", program=["true"])
    assert "record" not in {tool.name for tool in tools_of(workspace)}
    allowed = Workspace([tmp_path], allow_run=True)
    assert len(tools_of(allowed)) == 8
    answer = call(allowed, "record", program=["/nothing/there"])
    assert answer["exit_code"] == 2
    assert "captures" not in answer


def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    allowed = Workspace([tmp_path], allow_run=True)
    error = refused(
        allowed,
        "record",
        program=[sys.executable, "-c", "import time; time.sleep(60)"],
        timeout_s=1,
    )
    assert "within 1 s" in error


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("diagnose", {}),
        ("diagnose", {"capture": 5}),
        ("diagnose", {"capture": TIMELINE, "unknown": 1}),
        ("diagnose", {"capture": TIMELINE, "cursor": "-1"}),
        ("diagnose", {"capture": "nothing.sqlite"}),
        ("diagnose", {"capture": "memory_snapshot.pickle"}),
        ("explain", {"capture": TIMELINE, "id": "nonsense"}),
        ("explain", {"capture": TIMELINE, "id": "kernels:999999"}),
        ("nothing", {}),
    ],
)
def test_bad_calls_get_one_line(workspace: Workspace, tool: str, given: dict[str, Any]) -> None:
    assert refused(workspace, tool, **given)


def test_the_list_of_tools_is_small() -> None:
    described = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
        for tool in TOOLS.values()
    ]
    assert count_tokens(json.dumps(described)) < 3000


# Text of captures -------------------------------------------------------------------------------


def test_names_that_give_orders_stay_marked(tmp_path: Path) -> None:
    name = capture_with_orders(tmp_path).name
    with closing(Workspace([tmp_path])) as workspace:
        plan = call(workspace, "diagnose", capture=name)
        ids = [*(fix["id"] for fix in plan["fixes"]), *plan["ledger_percent"], "ranges:13"]
        answers = [
            plan,
            call(workspace, "open", capture=name),
            *(call(workspace, "explain", capture=name, id=which) for which in ids),
            call(workspace, "whatif", capture=name, changes=["speedup kernel:*gemm*=2x"]),
            call(workspace, "compare", before=[name], after=[name]),
            call(workspace, "query", capture=name, sql="SELECT name FROM kernels LIMIT 3"),
            call(workspace, "window", capture=name, start_ms=20, end_ms=40),
        ]
    texts = [text for answer in answers for text in _texts(answer)]
    assert any(ORDER in text for text in texts)
    for text in texts:
        outside = re.sub(r"`[^`]*`", "", text)
        assert not {"IGNORE", "rm -rf", "evil"} & set(re.findall(r"IGNORE|rm -rf|evil", outside))
        assert text.isprintable() or "\n" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


# A scripted agent -------------------------------------------------------------------------------

_QUICK = {"dataload", "pageable", "tiny", "healthy", "item"}


def _cases() -> list[Any]:
    """Mark all but a few of the planted captures as wide."""
    return [
        pytest.param(
            path,
            id=f"{path.parent.name}/{path.name}",
            marks=() if path.name.partition(".")[0] in _QUICK else pytest.mark.wide,
        )
        for path in program_captures()
    ]


@pytest.mark.shared
@pytest.mark.parametrize("path", _cases())
def test_three_calls_find_the_cause(path: Path) -> None:
    solved = solve_program(path)
    assert solved.holds, solved


@pytest.mark.shared
@needs_shared
def test_two_calls_find_what_limits_a_kernel() -> None:
    solved = solve_kernels(SHARED / "ncu" / "kernels_full.ncu-rep.xz")
    assert len(solved) == len(KERNELS)
    assert [one for one in solved if not one.holds] == []


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("name", JOBS)
def test_one_call_finds_the_straggler(name: str, tmp_path: Path) -> None:
    solved = solve_job(name, tmp_path)
    assert solved.holds, solved
    assert solved.calls == 1


@pytest.mark.shared
@needs_shared
def test_a_pattern_names_all_ranks_and_one_rank_is_no_job() -> None:
    with closing(Workspace([SHARED / "ranks"])) as workspace:
        ranks = "ddp_torch_2.rank*.trace.json.gz"
        answer = call(workspace, "diagnose", capture=ranks)
        assert [straggler["rank"] for straggler in answer["stragglers"]] == [2]
        rank = call(workspace, "explain", capture=ranks, id=answer["stragglers"][0]["id"])
        assert rank["title"] == "rank 2 of 4: late (host), constant"
        assert rank["latest_steps"][0]["late_ms"] > 20
        assert answer["by_rank"][3]["id"] == "rank:3"
        assert "no rank" in refused(workspace, "explain", capture=ranks, id="launch-bound")
        one = ranks.replace("*", "0")
        assert "one rank" in refused(workspace, "diagnose", capture=one, ranks=True)
        assert "such a name" in refused(workspace, "diagnose", capture="other*.json.gz")


@pytest.mark.parametrize(
    ("name", "recorded", "recorder"),
    [(TIMELINE, "after.sqlite", "auto"), (REPORT, "after.ncu-rep", "ncu")],
)
def test_the_commands_that_verify_a_fix_run(
    name: str, recorded: str, recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Workspace([DATA])) as workspace:
        plan = call(workspace, "diagnose", capture=name)
        [first, *_] = plan.get("fixes") or plan["kernels"]
        verify = call(workspace, "explain", capture=name, id=first["id"])["verify"]
    record, _, check = verify.partition(" && ")
    args = build_parser().parse_args(shlex.split(record)[1:])
    assert (args.command, args.tool, args.output) == ("record", recorder, "after")
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(DATA / name, recorded)
    Path(f"{recorded}.stacks").touch()  # `record` writes it for Python programs
    words = [
        [word] if "*" not in word else sorted(map(str, Path().glob(word)))
        for word in shlex.split(check)[1:]
    ]
    assert main([word for expanded in words for word in expanded]) == 0


def test_a_job_is_a_folder_without_links_out_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "inside" / "job"
    folder.mkdir(parents=True)
    for rank in range(2):
        shutil.copyfile(DATA / "healthy.json.gz", folder / f"run.rank{rank}.json.gz")
    shutil.copyfile(DATA / "healthy.json.gz", tmp_path / "outside.rank2.json.gz")
    with closing(Workspace([tmp_path / "inside"])) as workspace:
        assert len(workspace.files("job")) == 2
        (folder / "run.rank2.json.gz").symlink_to(tmp_path / "outside.rank2.json.gz")
        assert "no such capture" in refused(workspace, "diagnose", capture="job")
