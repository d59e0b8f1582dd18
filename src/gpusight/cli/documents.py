"""What `--format json` writes of answers that are no tables."""

from __future__ import annotations

_LEDGER = (
    "`ledger`: `window` (`start_ns`, `end_ns`); `devices`, each with `device`, `name`, "
    "`entries` (`entry` such as `compute/matmul`, `copy/h2d`, `communication` or "
    "`idle/input`, its `ns` and `share`; `parts` by precision or kind of memory; "
    "`contributors` of idle entries: `kind`, `name`, `ns`, `count`) and `overlap`; `steps`, "
    "each with `step`, `number`, `start_ns`, `end_ns`, and `devices` as above. The entries of "
    "a device sum to the window, those of a step to the step."
)
_DIAGNOSIS = (
    "`diagnose` of a timeline: `window` with `steps`, `steps_left_out` and `step_ns`; "
    "`findings`, the one that gives most back first, each with `rule`, `title`, "
    "`recoverable_ns` and `share` of the window, `recoverable_ns_per_step`, `after_above_ns` "
    "(what it gives once the findings above are fixed), `confidence`, `confidence_reason`, "
    "`robust`, `estimate`, `evidence` (`metric`, `value`, `unit`, `meaning`), `why`, `fix`, "
    "`code`, `afterwards`, `misleads` and `where` (`kind`, `name`, `ns`, `count`); `clean`, "
    "the rules that found nothing; `incomplete`, why the capture holds less than what ran; "
    "`not_applicable` (`rule`, `reason`); `replay` (`error`, `steps`, "
    "`length_ns`); `ledger` (`window`, `devices`). Of an Nsight Compute report: "
    "`saved_ns` and `kernels`, each with its `findings`. Of both: the timeline's document and "
    "`kernels`, those of the window by time (`name`, `label`, `calls`, `time_ns`, `share`, "
    "`time_ns_per_step`, `gpu_saved_ns`) with the report's `findings`."
)
_WHATIF = (
    "`whatif`: `window`, `measured_ns`, `unchanged_ns`, `error`, `changed_ns`, `saved_ns`, "
    "`share`, `steps`; `changes`, each with `change`, `alone_ns` and `after_ns`; `ledger` "
    "with `before` and `after`."
)
_DRILL = (
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
_RECORD = (
    "`record --dry-run`: `recorded` (false for a rank that is not chosen), `tool`, `version`, "
    "`why`, `rank`, `command`, `environment` (what is added to it), `capture` and `notes`. "
    "`record --summary FILE`, after the run: `tool`, `version`, `command`, `captures` (`path`, "
    "`bytes`), `memory_snapshots`, `exit_code`, `seconds`, `notes` and `why_nothing`."
)
_COMPARE = (
    "`compare`: `meta` with `before` and `after` (each `labels`, `tools`, `gpus`, `steps`, "
    "`step_ns`, `period_ns`, `limit`, `busy_share`), `confidence`, `confidence_of_rows` (of "
    "kernels, API calls, copies and inner ranges), `least_effect` and `notes`; `verdict` with "
    "`step_time`, `step_period` and `headline`: which of them tells how fast the program is; "
    "`differences`, which keep the captures from being compared (`kind` as `gate --allow-changed` "
    "takes it, `text`); `explanation`, in sentences; `metrics` (`metric` as `gate --max` calls it, "
    "`label`, `missing`: why a side does not know it); `ledger`, whose entries sum to the step "
    "(`entry`, `part` of the step's change); `between`, the same of the time between steps; "
    "`phases` (`phase`); `kernels` (`kernel`, `category`, `match`: `name`, `role`, `appeared` or "
    "`vanished`, `before_names`, `after_names`, `ranges`, `calls_before`, `calls_after`, "
    "`mean_ns_before`, `mean_ns_after`); `ranges` and `api_calls` (`name`, `calls_before`, "
    "`calls_after`; on the host, and `gpu`, or null where it is not known); `copies` "
    "(`operation`, `src_kind`, `dst_kind`, `bytes_before`, `bytes_after`, calls); `findings` "
    "(`rule`, `title`, `fate`: `fixed`, `new` or `stayed`, `before_ns`, `after_ns`, "
    "`captures_before`, `captures_after`, `capture` that `title` is of). Whatever changes has "
    "`before`, `after`, `change`, "
    "`ratio`, `low` and `high` (the interval of the change), `verdict` (`lower`, `higher`, "
    "`same`, `unclear`, `appeared`, `vanished`) and `basis` (`repeats`, `steps`, `none`): ns, "
    "bytes or counts a step."
)
_GATE = (
    "`gate`: `meta` with `baseline` and `captures` (their names), `confidence`, `strict`, "
    "`allow_missing`, `allow_changed` and `notes`; `passed`: whether the exit code is 0; "
    "`outcome` (`passed`, `failed`, `inconclusive`); `differences`, which keep the captures from "
    "being compared (`kind`, `text`, `allowed`); `checks`, each with `metric`, `judged` (the "
    "metric that it is judged by: `step_period` for the step where much lies between), `limit`, "
    "`kind` (`relative`, `absolute`, `ceiling`), `status` (`passed`, `failed`, `unsure`, "
    "`inconclusive`, `missing`), "
    "`most` (the largest value that is within the limit), `over` (by how much it is over that), "
    "`before`, `after`, `change`, `ratio`, `low` and `high` (of the change; under a ceiling, of "
    "the value), `verdict`, `basis` and `reason`; `explanation`, as of `compare`."
)
_BASELINE = (
    "`baseline save` and `baseline show` write rows as below. The file that `save` makes is "
    "another document, for `compare` and `gate` to read: what is in it may change with the "
    "version."
)
DOCUMENTS = (_LEDGER, _DIAGNOSIS, _WHATIF, _DRILL, _RECORD, _COMPARE, _GATE, _BASELINE)
