"""Documentation pages generated from the code: `python -m tools.generate_docs [--check] [FOLDER]`.

`docs/cli.md` comes from the parsers, `docs/model.md` from the schema, `docs/json.md` from the
fields that analyses declare, `docs/accuracy.md` from the scores of programs with known defects;
README.md and `docs/ledger.md` have generated blocks. A test fails when a committed page differs
from what this writes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.commands import COMMANDS
from gpusight.cli.output import write_error, write_out
from gpusight.render.markdown_tables import markdown_code, markdown_prose, markdown_table
from gpusight.results import Fact, Field, Fmt
from tools.hardware_page import hardware_page
from tools.page_blocks import ledger_page, readme_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusight.trace.trace import Trace


_LEDGER_DOCUMENT = (
    "`ledger`: `window` (`start_ns`, `end_ns`; of steps also `step_ns`, `recorded_step_ns` and "
    "`estimate_ns`, as of `diagnose`); `devices`, each with `device`, `name`, "
    "`entries` (`entry` such as `compute/matmul`, `copy/h2d`, `communication` or "
    "`idle/input`, its `ns` and `share`; `parts` by precision or kind of memory; "
    "`contributors` of idle entries: `kind`, `name`, `ns`, `count`) and `overlap`; `steps`, "
    "each with `step`, `number`, `start_ns`, `end_ns`, and `devices` as above. The entries of "
    "a device add up to the window, those of a step to the step."
)
_DIAGNOSIS_DOCUMENT = (
    "`diagnose` of a timeline: `window` with `steps`, `steps_left_out`, `step_ns`, "
    "`recorded_step_ns` (under the profiler; the same where nothing is corrected), `estimate_ns` "
    "(lowest and highest step time without the profiler where it is an estimate; else null) and "
    "`inner_loop` "
    "(the loop inside each step: `count` of its iterations, `gpu_ops` and `gpu_ns` of each; null "
    "for none); `profiler`, null or how times were corrected (`measured_step_ns`, "
    "`measured_steps`, `spread`, `how`, `overhead_per_event_ns`, `overhead_share`, "
    "`events_per_step`; `estimated`, and then `low_step_ns` and `high_step_ns`); all other times "
    "and shares of `diagnose`, `explain`, `whatif`, `ledger`, `steps`, `summary`, `compare` and "
    "`gate` are those without the profiler where `step_ns` is, and `meta.window` says so; "
    "`kernels`, `stats` and every other command show recorded times; "
    "`plan` (`fixes`, `step_ns`, `predicted_step_ns`, `speedup`, `upper_bound`: all fixes save at "
    "most that, because a finding of low confidence is among them); "
    "`findings`, in the order of the plan, each with `rule`, `title`, "
    "`recoverable_ns` and `share` of the window, `recoverable_ns_per_step`, `after_above_ns` "
    "(what it saves once the findings above are fixed), `confidence`, `confidence_reason`, "
    "`similar_fixes` (null, or how far predictions of such fixes were off: `of` this rule or rules "
    "like it, `pairs`, `programs`, `median_error`, `worst_error`), "
    "`effort` (`one line`, `config` or `rewrite`), "
    "`robust`, `estimate`, `evidence` (`metric`, `value`, `unit`, `meaning`), `why`, `fix`, "
    "`code`, `afterwards`, `misleads`, `where` (`kind`, `name`, `ns`, `count`), `where_time` "
    "(what these times are, if not what is saved, such as host time of launches) and `lines` "
    "(`file`, `line`, `function`, `ns`, `share`: lines of the program behind it); `clean`, "
    "the rules that passed; `incomplete`, why the capture contains less than what ran; "
    "`not_applicable` (`rule`, `reason`); `replay` (`error`, `steps`, "
    "`length_ns`); `ledger` (`window`, `devices`). Of an Nsight Compute report: "
    "`saved_ns` and `kernels`, each with its `findings`. Of both: the timeline's document and "
    "`kernels`, those of the window by time (`name`, `label`, `calls`, `time_ns`, `share`, "
    "`time_ns_per_step`, `gpu_saved_ns`) with the report's `findings`."
)
_WHATIF_DOCUMENT = (
    "`whatif`: `window`, `measured_ns`, `unchanged_ns`, `error`, `changed_ns`, `saved_ns`, "
    "`share`, `steps`; `changes`, each with `change`, `alone_ns` and `after_ns`; `ledger` "
    "with `before` and `after`."
)
_DRILL_DOCUMENT = (
    "`drill`: `window_ns`, `steps`, `kernel_ns`; `kernels` by time, each with `kernel` (its "
    "number), `name`, `label`, `function`, `category`, `grid`, `block`, `launches`, `time_ns` "
    "(both also `_per_step`), `share` of kernel time, `roof_share`, `verdict`, `why`, `measured` "
    "and `measured_other_shapes` (launches in the reports given); `anchor` (`range`, `ranges`, "
    "`step`, `profiler`, `program` or `unsure`: from where launches are counted), `why`, `exact`; "
    "`runs`, each with `kernels`, `kernel_regex`, `kernel_name_base`, `launch_skip`, "
    "`launch_count`, `nvtx_include` (a list), `nvtx_process_scope`, `profile_from_start`, `step`, "
    "`command`, `environment` and `report`; `level`, `tool`, `installed`, `program`, `estimate_s`; "
    "`diagnoses`, as of `diagnose` with both captures, one for each report."
)
_RECORD_DOCUMENT = (
    "`record --dry-run`: `recorded` (false for a rank that is not chosen), `tool`, `version`, "
    "`why`, `rank`, `command`, `environment` (what is added to it), `capture` and `notes`. "
    "`record --summary FILE`, after the run: `tool`, `version`, `command`, `captures` (`path`, "
    "`bytes`), `memory_snapshots`, `exit_code`, `seconds`, `notes` and `why_nothing`."
)
_RANKS_DOCUMENT = (
    "`ranks`: `meta` (`ranks`, `world_size`, `missing_ranks`, `tools`, `rank_from`, `steps` that "
    "are compared, `step_ns` measured and `simulated_step_ns`, `simulation_error`, "
    "`balanced_step_ns` without stragglers, `noise_ns`, `collectives` that are matched, "
    "`matched_by`, `notes`); `ranks`, each with the fields of CSV, times per step, and `idle` by "
    "cause; `stragglers`, each with `rank`, `cause` (`host`, `input`, `more-work`, "
    "`slow-kernels`, `upstream`, `network`), `share` of the job's step time, `recoverable_ns` and "
    "`late_ns` per step, `pattern`, `evidence` (`metric`, `value`, `unit`, `meaning`); `steps` "
    "(`step`, `step_ns`, `slowest` rank, `late_ns`); `clocks` (`rank`, `offset_ns`, `drift_ppm`, "
    "`error_ns`, `jumps`); `slowdown` of a trace of operations (`blocking`, `launch`, "
    "`worst_workers`, `by_operation`, …), else null; `unread` (`file`, "
    "`rank`, `reason`)."
)
_COMPARE_DOCUMENT = (
    "`compare`: `meta` with `before` and `after` (each `labels`, `tools`, `gpus`, `steps`, "
    "`step_ns`, `recorded_step_ns`, `estimated`, `limit`, `busy_share`, `host_share`), "
    "`confidence`, "
    "`confidence_of_rows` (of kernels, API calls, copies and inner ranges), `least_effect` "
    "and `notes`; `verdict` with `step_time`, which also has `run_noise` (by how much runs of one "
    "program may differ, where one capture per side does not show it; else null); "
    "`differences`, which keep the captures from being compared (`kind` as `gate --allow-changed` "
    "takes it, `text`); `explanation`, in sentences; `metrics` (`metric` as `gate --max` calls it, "
    "`label`, `missing`: why a side does not know it); `ledger`, whose entries sum to the step "
    "(`entry`, `part` of the step's change); "
    "`phases` (`phase`); `kernels` (`kernel`, `category`, `match`: `name`, `role`, `appeared` or "
    "`vanished`, `before_names`, `after_names`, `ranges`, `calls_before`, `calls_after`, "
    "`mean_ns_before`, `mean_ns_after`); `ranges` and `api_calls` (`name`, `calls_before`, "
    "`calls_after`; on the host, and `gpu`, or null where it is not known); `copies` "
    "(`operation`, `src_kind`, `dst_kind`, `bytes_before`, `bytes_after`, calls); `findings` "
    "(`rule`, `title`, `fate`: `fixed`, `new`, `stayed`, `not evaluated after` or `not evaluated "
    "before`, `not_evaluated`: why, or null, `before_ns` and `after_ns` (what the fix alone "
    "saves), `captures_before`, "
    "`captures_after`, `capture` that `title` is of). Whatever changes has "
    "`before`, `after`, `change`, "
    "`ratio`, `low` and `high` (the interval of the change), `verdict` (`lower`, `higher`, "
    "`same`, `unclear`, `appeared`, `vanished`, or `not comparable`: different programs, or times "
    "with and without the profiler) and `basis` (`repeats`, `steps`, `none`): ns, "
    "bytes or counts per step."
)
_GATE_DOCUMENT = (
    "`gate`: `meta` with `baseline` and `captures` (their names), `confidence`, "
    "`inconclusive` (`pass`, `fail` or null), `allow_missing`, `allow_changed`, "
    "`without_profiler` (all times are corrected for its overhead) and `notes`; `passed`: whether "
    "the exit code is 0; `outcome` (`pass`, `fail`, `inconclusive`) and "
    "`exit_code`; `differences`, which make the captures not comparable (`kind`, `text`, "
    "`allowed`); `checks`, each with `metric`, `limit`, `kind` "
    "(`relative`, `absolute`, `ceiling`), `status` (`pass`, `fail`, `inconclusive`, `skipped`), "
    "`cause` (of the last two: `noise`, `not-comparable`, `not-recorded`, `lost-data`), "
    "`repeats` (about how many captures per side would settle it), `run_noise` (by how much runs "
    "may differ where one capture per side does not show it; else null), `reaches_limit` (it "
    "passed, but its interval reaches over the limit), "
    "`most` (the largest value that is within the limit), `over` (by how much it is over that), "
    "`before`, `after`, `change`, `ratio`, `low` and `high` (of the change; under a ceiling, of "
    "the value), `verdict`, `basis` and `reason`; `explanation`, as of `compare`."
)
_BASELINE_DOCUMENT = (
    "`baseline save` and `baseline show` write rows as below. The file that `save` makes is "
    "another document, for `compare` and `gate` to read: what is in it may change with the "
    "version."
)
DOCUMENTS = (
    _LEDGER_DOCUMENT,
    _DIAGNOSIS_DOCUMENT,
    _WHATIF_DOCUMENT,
    _DRILL_DOCUMENT,
    _RECORD_DOCUMENT,
    _COMPARE_DOCUMENT,
    _RANKS_DOCUMENT,
    _GATE_DOCUMENT,
    _BASELINE_DOCUMENT,
)


_GENERATED = "<!-- Generated by scripts/generate-docs; edit the code it comes from instead. -->"
_EXIT_CODES = (
    ("0", "done"),
    (
        "1",
        "check failed: `gate` FAIL, `diagnose --fail-over`, `doctor --require`, `orion check`",
    ),
    ("3", "`gate` INCONCLUSIVE: noise, missing data, or captures that are not comparable"),
    (
        "2",
        "invalid request or capture, or the capture does not contain the requested data",
    ),
    ("70", "a bug in gpusight: run again with `--debug` for the traceback, and report it"),
    ("130", "interrupted"),
    ("141", "broken pipe"),
    (
        "of the program",
        "`record`: the exit code of the program, 128+N after signal N; 2 if nothing was recorded",
    ),
)
_JSON_TYPES = {
    Fmt.TEXT: "text",
    Fmt.ID: "number",
    Fmt.FLAG: "true or false",
    Fmt.NAME: "text",
    Fmt.COUNT: "number",
    Fmt.TIME: "number, ns",
    Fmt.BYTES: "number, bytes",
    Fmt.SHARE: "number, 0 to 1",
    Fmt.RATE: "number, bytes/s",
    Fmt.REAL: "number",
}
SECTIONS: dict[str, dict[str, str]] = {
    "info": {
        "devices": "gpusight.analysis.capture_info:DEVICE_FIELDS",
        "processes": "gpusight.analysis.capture_info:PROCESS_FIELDS",
        "process_groups": "gpusight.analysis.capture_info:GROUP_FIELDS",
        "contents": "gpusight.analysis.capture_info:CONTENT_FIELDS",
        "rules": "gpusight.analysis.capture_info:RULE_FIELDS",
        "missing": "gpusight.analysis.capture_info:MISSING_FIELDS",
        "messages": "gpusight.analysis.capture_info:MESSAGE_FIELDS",
    },
    "summary": {
        "gpu_time": "gpusight.analysis.gpu_time:FIELDS",
        "categories": "gpusight.analysis.capture_summary:CATEGORY_FIELDS",
        "ranges": "gpusight.analysis.range_summary:BRIEF_FIELDS",
    },
    "steps": {
        "steps": "gpusight.analysis.steps.step_report:STEP_FIELDS",
        "phases": "gpusight.analysis.steps.step_report:PHASE_FIELDS",
    },
    "kernels": {"": "gpusight.analysis.kernel_summary:FIELDS"},
    "ops": {"": "gpusight.analysis.operator_summary:FIELDS"},
    "ops --by module": {"": "gpusight.analysis.operator_summary:MODULE_FIELDS"},
    "launches": {"": "gpusight.analysis.launch_list:FIELDS"},
    "ledger --format csv": {"": "gpusight.analysis.ledger.ledger_tables:LINE_FIELDS"},
    "hotspots": {"": "gpusight.analysis.hotspots.stack_times:FIELDS"},
    "hotspots --by stack": {"": "gpusight.analysis.hotspots.stack_times:TREE_FIELDS"},
    "utilization": {
        "gpus": "gpusight.analysis.gpu_utilization:GPU_FIELDS",
        "bins": "gpusight.analysis.gpu_utilization:BIN_FIELDS",
        "metric_means": "gpusight.analysis.gpu_utilization:MEAN_FIELDS",
        "metrics": "gpusight.analysis.gpu_utilization:METRIC_FIELDS",
        "steps": "gpusight.analysis.gpu_utilization:STEP_FIELDS",
    },
    "timeline": {
        "tracks": "gpusight.viewer.timeline_snapshot:TRACK_FIELDS",
        "slices": "gpusight.viewer.timeline_snapshot:SLICE_FIELDS",
        "sums": "gpusight.viewer.timeline_snapshot:SUM_FIELDS",
        "points": "gpusight.viewer.timeline_snapshot:POINT_FIELDS",
    },
    "ranges": {"": "gpusight.analysis.range_summary:FIELDS"},
    "api": {"": "gpusight.analysis.api_summary:FIELDS"},
    "copies": {"": "gpusight.analysis.copy_summary:FIELDS"},
    "memory": {
        "devices": "gpusight.analysis.memory.memory_usage:DEVICE_FIELDS",
        "out_of_memory": "gpusight.analysis.memory.memory_peak:FAILURE_FIELDS",
        "peak": "gpusight.analysis.memory.memory_peak:PEAK_FIELDS",
        "block_groups": "gpusight.analysis.memory.memory_peak:GROUP_FIELDS",
        "blocks": "gpusight.analysis.memory.memory_peak:BLOCK_FIELDS",
        "steps": "gpusight.analysis.memory.device_memory:STEP_FIELDS",
        "reserved": "gpusight.analysis.memory.allocations:RESERVED_FIELDS",
        "segments": "gpusight.analysis.memory.allocations:SEGMENT_FIELDS",
        "kinds": "gpusight.analysis.memory.memory_usage:KIND_FIELDS",
        "timeline": "gpusight.analysis.memory.memory_peak:TIMELINE_FIELDS",
    },
    "flops": {
        "steps": "gpusight.analysis.flops.flops_tables:STEP_FIELDS",
        "operators": "gpusight.analysis.flops.flops_tables:OPERATOR_FIELDS",
        "not_counted": "gpusight.analysis.flops.flops_tables:REST_FIELDS",
    },
    "questions": {
        "forward_time": "gpusight.analysis.questions.forward_time:TIME_FIELDS",
        "passes": "gpusight.analysis.questions.forward_time:PASS_FIELDS",
        "top_kernels": "gpusight.analysis.questions.kernel_questions:TOP_FIELDS",
        "other_kernels": "gpusight.analysis.questions.kernel_questions:OTHER_FIELDS",
        "shares": "gpusight.analysis.questions.kernel_questions:FIELDS",
        "attention": "gpusight.analysis.questions.attention_question:FIELDS",
    },
    "questions --batch": {
        "numbers": "gpusight.analysis.questions.question_answers:NUMBER_FIELDS",
        "answers": "gpusight.analysis.questions.question_answers:ANSWER_FIELDS",
        "failed": "gpusight.analysis.questions.question_answers:SKIPPED_FIELDS",
        "skipped": "gpusight.analysis.questions.question_answers:SKIPPED_FIELDS",
    },
    "kernels REPORT.ncu-rep": {"": "gpusight.analysis.counters.measured_kernels:FIELDS"},
    "summary REPORT.ncu-rep": {"kernels": "gpusight.analysis.counters.measured_kernels:FIELDS"},
    "launches REPORT.ncu-rep": {"": "gpusight.analysis.counters.measured_kernels:LAUNCH_FIELDS"},
    "counters": {"": "gpusight.analysis.counters.counter_tables:FIELDS"},
    "counters --wide": {"": "gpusight.analysis.counters.counter_tables:WIDE_FIELDS"},
    "counters --list": {"": "gpusight.analysis.counters.counter_tables:LIST_FIELDS"},
    "counters --instances": {"": "gpusight.analysis.counters.counter_tables:INSTANCE_FIELDS"},
    "counters --source": {"": "gpusight.analysis.counters.source_lines:FIELDS"},
    "counters --source --metrics": {"": "gpusight.analysis.counters.source_lines:METRIC_FIELDS"},
    "join": {
        "kernels": "gpusight.analysis.join.joined_kernels:KERNEL_FIELDS",
        "unmeasured": "gpusight.analysis.join.joined_kernels:UNMEASURED_FIELDS",
        "unused": "gpusight.analysis.join.joined_kernels:UNUSED_FIELDS",
    },
    "occupancy": {
        "limiters": "gpusight.analysis.occupancy.kernel_occupancy:LIMITER_FIELDS",
        "kernels": "gpusight.analysis.occupancy.kernel_occupancy:FIELDS",
        "advice": "gpusight.analysis.occupancy.kernel_occupancy:ADVICE_FIELDS",
        "limits": "gpusight.analysis.occupancy.block_occupancy:LIMIT_FIELDS",
        "block_sizes": "gpusight.analysis.occupancy.block_occupancy:BLOCK_FIELDS",
        "registers": "gpusight.analysis.occupancy.block_occupancy:REGISTER_FIELDS",
        "shared_memory": "gpusight.analysis.occupancy.block_occupancy:SHARED_FIELDS",
    },
    "roofline": {
        "kernels": "gpusight.analysis.roofline.roofline_report:FIELDS",
        "roofs": "gpusight.analysis.roofline.roofline_report:ROOF_FIELDS",
    },
    "roofline --launches": {"launches": "gpusight.analysis.roofline.roofline_report:LAUNCH_FIELDS"},
    "doctor": {
        "tools": "gpusight.recording.doctor.checkup:TOOL_FIELDS",
        "checks": "gpusight.recording.doctor.checkup:CHECK_FIELDS",
    },
    "orion build": {
        "classes": "gpusight.analysis.orion.orion_build:CLASS_FIELDS",
        "left_out": "gpusight.analysis.orion.orion_build:LEFT_OUT_FIELDS",
        "differences": "gpusight.analysis.orion.orion_matching:DIFFERENCE_FIELDS",
        "rows": "gpusight.analysis.orion.orion_build:ROW_FIELDS",
        "launches": "gpusight.analysis.orion.orion_build:LAUNCH_FIELDS",
    },
    "orion build, of files that disagree": {
        "": "gpusight.analysis.orion.orion_matching:DISAGREEMENT_FIELDS"
    },
    "orion check": {"broken": "gpusight.analysis.orion.orion_rows:BROKEN_FIELDS"},
    "orion plot": {
        "unmeasured": "gpusight.analysis.orion.orion_utilization:UNMEASURED_FIELDS",
        "series": "gpusight.analysis.orion.orion_utilization:SERIES_FIELDS",
    },
    "drill --format csv": {"": "gpusight.analysis.drill.drill_result:FIELDS"},
    "whatif --format csv": {
        "changes": "gpusight.analysis.scenario:CHANGE_FIELDS",
        "ledger": "gpusight.analysis.scenario:LEDGER_FIELDS",
    },
    "ranks --format csv": {"": "gpusight.render.ranks_view:RANK_FIELDS"},
    "compare --format csv": {"": "gpusight.render.comparison_view:COMPARISON_FIELDS"},
    "diagnose --format csv": {"": "gpusight.render.diagnosis_summary:TIMELINE_FINDING_FIELDS"},
    "diagnose REPORT.ncu-rep --format csv": {"": "gpusight.render.explanation:FINDING_FIELDS"},
    "diagnose --list-rules": {"": "gpusight.render.explanation:RULE_FIELDS"},
    "baseline": {
        "captures": "gpusight.comparison.baseline_file:CAPTURE_FIELDS",
        "times": "gpusight.comparison.baseline_file:TIME_FIELDS",
        "counts": "gpusight.comparison.baseline_file:COUNT_FIELDS",
        "bytes": "gpusight.comparison.baseline_file:BYTE_FIELDS",
    },
    "share": {
        "categories": "gpusight.render.share_view:CATEGORY_FIELDS",
        "places": "gpusight.render.share_view:PLACE_FIELDS",
        "remains": "gpusight.render.share_view:REMAIN_FIELDS",
    },
    "sql --tables": {"": "gpusight.render.table_export:TABLE_FIELDS"},
    "sql --columns": {"": "gpusight.render.table_export:COLUMN_FIELDS"},
    "stats --list": {"": "gpusight.cli.commands.stats:LIST_FIELDS"},
    "stats --output DIR": {"": "gpusight.cli.stats_answers:SUMMARY_FIELDS"},
}
"""Where the row fields of each command are declared, by section."""


def cli_page() -> str:
    """Write the reference of the command line."""
    parts = [
        "# Command line",
        _READ_ONLY,
        markdown_table(("command", "what it shows"), (False, False), _command_list()),
        "## Exit codes",
        markdown_table(("code", "meaning"), (True, False), _EXIT_CODES),
        _WHAT_IS_WRITTEN,
    ]
    for name in COMMANDS:
        parts += _command_parts(name)
    return _page(parts)


_READ_ONLY = (
    "`record` makes a capture; `doctor` checks which profilers work. The other commands read "
    "captures and never write to them."
)
_WHAT_IS_WRITTEN = (
    "If the capture lacks the data (no kernels, no ranges), the exit code is 2, and one line on "
    "standard error gives the reason and the remedy; `--format json` then also "
    'writes `{"meta": {"not_applicable": {"reason": …, "hint": …}}, "rows": []}`.\n\n'
    "After an error (a file that cannot be read, a wrong option), `--format json` without `-o` "
    'writes `{"meta": {"command": …, "error": {"reason": …, "hint": …, "exit_code": 2}}, "rows": '
    "[]}` to standard output, and the same line as always to standard error. A file of `-o` stays "
    "as it was, except that of `gate`, which gets the error. Both documents of `gate` also have "
    '`"passed": false`, `"outcome": "error"` and `"exit_code"`.\n\n'
    "Times are shown as ns, µs, ms or s; bytes and rates are decimal (1 MB is 1,000,000 bytes). "
    "JSON and CSV hold base units: nanoseconds, bytes, fractions of 1. Names come from the "
    "capture: characters that could drive a terminal are shown as escapes such as `\\x1b`; JSON "
    "holds the same characters escaped, CSV leaves them as data unless it goes to a terminal. In "
    "CSV files, a cell that a spreadsheet would run as a formula gets a `'` in front; `--csv-raw` "
    "leaves it, and so does `stats`, whose files are those of `nsys stats`.\n\n"
    "Files are written to a temporary name in the same folder and renamed once they are complete: "
    "after a full disk or `kill -9` the old file is still there. `-o` does not write through "
    "symbolic links. Errors are one line; `--debug` (or `GPUSIGHT_DEBUG=1`) shows the traceback."
)


def _command_list() -> Iterator[tuple[str, str]]:
    return ((f"[`{name}`](#gpusight-{name})", c.SUMMARY) for name, c in COMMANDS.items())


def _command_parts(name: str) -> Iterator[str]:
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(prog=f"gpusight {name}", add_help=False)
    command.add_arguments(parser)
    options.add_common(parser)
    yield f"## `gpusight {name}`"
    yield command.DESCRIPTION
    yield "```console\n" + "\n".join(f"$ {line}" for line in command.EXAMPLES) + "\n```"
    yield _argument_table(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield f"### `gpusight {name} {verb}`"
                yield inner.description or ""
                yield _argument_table(inner)


def _argument_table(parser: argparse.ArgumentParser) -> str:
    own = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    rows = [(_spelling(a), markdown_prose((a.help or "").replace("%%", "%"))) for a in own]
    return markdown_table(("argument", "meaning"), (False, False), rows)


def _spelling(action: argparse.Action) -> str:
    value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest)
    words = ", ".join(action.option_strings)
    takes_value = not words or action.nargs != 0
    spelling = " ".join(filter(None, (words, value if takes_value else "")))
    return markdown_code(spelling)


def model_page() -> str:
    """Write the reference of the model's tables."""
    from gpusight.trace.schema import TABLES

    parts = ["# The model", _MODEL_INTRODUCTION]
    for entry in TABLES.values():
        rows = [
            (f"`{c.name}`", c.type_name, c.unit, _inline(c.meaning) + _never_null(c.required))
            for c in entry.columns
        ]
        parts += [f"## `{entry.name}`", f"{_inline(entry.meaning)}."]
        parts.append(markdown_table(("column", "type", "unit", "meaning"), (False,) * 4, rows))
    return _page(parts)


_MODEL_INTRODUCTION = (
    "Every capture is read into these tables, available in `gpusight sql`, `gpusight export` and "
    "`trace.<table>`. Times are nanoseconds from the capture's origin. `Enum` columns are "
    "dictionary-encoded names. A column that the capture lacks is null throughout. Rows are "
    "sorted by the first time column. In `gpusight sql` every table also has `row`, the number of "
    "the row from 0, so that `gpusight explain FILE kernels:17` shows an event."
)


def _never_null(required: bool) -> str:
    return "; never null" if required else ""


def _inline(text: str) -> str:
    """Keep the code spans that meanings are written with; only a cell's end is escaped."""
    return text.replace("|", "\\|")


def json_page() -> str:
    """Write the reference of `--format json`."""
    parts = ["# JSON", _JSON_INTRODUCTION, "## Documents of their own", *DOCUMENTS]
    facts = {
        "info": _info_facts,
        "summary": _summary_facts,
        "steps": _steps_facts,
        "utilization": _utilization_facts,
        "timeline": _timeline_facts,
        "memory": _memory_facts,
        "flops": _flops_facts,
        "questions": _questions_facts,
        "occupancy": _occupancy_facts,
        "join": _join_facts,
        "roofline": _roofline_facts,
        "doctor": _doctor_facts,
        "baseline": _baseline_facts,
    }
    for command, sections in SECTIONS.items():
        parts.append(f"## `gpusight {command}`")
        if command in facts:
            parts += ["Facts in `meta`, where the capture has them:", facts[command]()]
        for section, place in sections.items():
            if section:
                parts.append(f'Rows with `"section": "{section}"`:')
            parts.append(_field_table(_fields(place)))
        if command == "summary":
            parts.append(_SUMMARY_SECTIONS)
    return _page(parts)


_SUMMARY_SECTIONS = (
    "Rows of the sections `kernels`, `copies` and `api` have the keys of those commands."
)


def _info_facts() -> str:
    from gpusight.analysis.capture_info import info

    return _fact_table(info(_demo()).facts)


def _summary_facts() -> str:
    from gpusight.analysis.capture_summary import summary

    return _fact_table(summary(_demo()).facts)


def _steps_facts() -> str:
    module = "gpusight.analysis.steps.step_report"
    return _field_table(_fields(f"{module}:FACTS") + _fields(f"{module}:INNER_FACTS"))


def _utilization_facts() -> str:
    return _field_table(_fields("gpusight.analysis.gpu_utilization:FACTS"))


def _timeline_facts() -> str:
    return _field_table(_fields("gpusight.viewer.timeline_snapshot:FACTS"))


def _memory_facts() -> str:
    return _field_table(_fields("gpusight.analysis.memory.memory_usage:FACT_FIELDS"))


def _flops_facts() -> str:
    from gpusight.analysis.flops.achieved_flops import FLOPS_FACTS as FACTS

    return _fact_table(FACTS)


def _questions_facts() -> str:
    from gpusight.analysis.questions.question_answers import QUESTION_FACTS as FACTS

    return _fact_table(FACTS)


def _join_facts() -> str:
    from gpusight.analysis.join.joined_kernels import JOIN_FACTS as FACTS

    return _fact_table(FACTS)


def _occupancy_facts() -> str:
    from gpusight.analysis.occupancy.block_occupancy import CALCULATOR_FACTS
    from gpusight.analysis.occupancy.kernel_occupancy import FACTS

    known = {fact.key for fact in FACTS}
    return _fact_table((*FACTS, *(fact for fact in CALCULATOR_FACTS if fact.key not in known)))


def _roofline_facts() -> str:
    from gpusight.analysis.roofline.roofline_report import ROOFLINE_FACTS as FACTS

    return _fact_table(FACTS)


def _doctor_facts() -> str:
    from gpusight.recording.doctor.checkup import FACTS

    return _fact_table(FACTS)


def _baseline_facts() -> str:
    return _field_table(_fields("gpusight.comparison.baseline_file:FACTS"))


def _demo() -> Trace:
    """Open the bundled capture, whose facts stand for those of all captures."""
    from importlib import resources

    from gpusight.cli.commands.demo import CAPTURES
    from gpusight.readers.open import open_trace

    with resources.as_file(resources.files("gpusight").joinpath(CAPTURES["nsys"])) as path:
        return open_trace(path, cache=False)


def _fact_table(facts: Iterable[Fact]) -> str:
    rows = [(f"`{f.key}`", _JSON_TYPES[f.fmt], f.label, _inline(f.meaning)) for f in facts]
    return markdown_table(("key", "type", "label", "meaning"), (False,) * 4, rows)


_JSON_INTRODUCTION = (
    'Every command with `--format json` writes one object: `{"meta": {…}, "rows": [{…}, …]}`. '
    "Values are in base units; unknown values are `null`, never NaN. `meta` holds `command`, "
    "`title`, `notes` (caveats), totals, and `rows_left_out` with `--top`. Commands with sections "
    "put their facts into `meta` "
    "by key, and name in each row its `section`; sections without data are in "
    "`meta.not_applicable`. `meta.headline` names the window of a timeline, the same for every "
    "command: `text`, `steps`, `step_ns` (without the profiler, where that is known or estimated), "
    "`recorded_step_ns` and `gpu_busy_share`. "
    "`csv` has the same keys as columns; for commands with sections its columns are `section`, "
    "`row`, `key` and `value`. `stats` writes rows with `capture`, `report` and the headings of "
    "nsys as keys; `meta.reports` has the status of each report. `ledger`, `whatif`, "
    "`diagnose`, `drill`, `compare`, `ranks` and `gate` write documents of their own."
)


def _fields(place: str) -> tuple[Field, ...]:
    module, _, name = place.partition(":")
    fields: tuple[Field, ...] = getattr(importlib.import_module(module), name)
    return fields


def _field_table(fields: Iterable[Field]) -> str:
    rows = [
        (f"`{f.key}`", _JSON_TYPES[f.fmt], f.label if f.shown else "", _inline(f.meaning))
        for f in fields
    ]
    return markdown_table(("key", "type", "column", "meaning"), (False,) * 4, rows)


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join([_GENERATED, *parts]) + "\n"


def kernel_rules_page() -> str:
    """Write the reference of the rules for kernels."""
    from tools.rule_pages import kernel_rules_parts

    return _page(kernel_rules_parts())


def timeline_rules_page() -> str:
    """Write the reference of the rules for timelines."""
    from tools.rule_pages import timeline_rules_parts

    return _page(timeline_rules_parts())


def accuracy_page() -> str:
    """Write how right diagnoses of programs with known defects are."""
    from tools.accuracy_page import accuracy_parts

    return _page(accuracy_parts())


PAGES: dict[str, Callable[[], str]] = {
    "accuracy.md": accuracy_page,
    "kernel-rules.md": kernel_rules_page,
    "timeline-rules.md": timeline_rules_page,
    "cli.md": cli_page,
    "hardware.md": hardware_page,
    "json.md": json_page,
    "ledger.md": ledger_page,
    "model.md": model_page,
    "../README.md": readme_page,
}
"""By path from `docs/`. In `ledger.md` and the README only marked blocks are generated."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with `--check` say which ones are out of date."""
    parser = argparse.ArgumentParser(prog="generate-docs", description="Write the generated pages.")
    parser.add_argument("folder", nargs="?", default="docs", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit code 1 on a change"
    )
    args = parser.parse_args(argv)
    stale = 0
    for name, page in PAGES.items():
        path, text = args.folder / name, page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if args.check:
            write_error(f"{path} is out of date; run scripts/generate-docs")
        else:
            path.write_text(text, encoding="utf-8", newline="\n")
            write_out(f"wrote {path}\n")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
