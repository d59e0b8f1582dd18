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
    "the rules that found nothing; `not_applicable` (`rule`, `reason`); `replay` (`error`, "
    "`steps`, `length_ns`); `ledger` (`window`, `devices`). Of an Nsight Compute report: "
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
DOCUMENTS = (_LEDGER, _DIAGNOSIS, _WHATIF, _DRILL, _RECORD)
