"""The replay against programs whose truth is known: change the program, run it again, compare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.gpu_schedule import CallKind, build_schedule
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.replay import changes, simulation
from gpusight.analysis.replay.window_replay import GpuSharing, Replay, alone_on_gpu
from gpusight.trace.intervals import Intervals
from tests.analysis.replay.simulator import GAP_NS, TAIL_NS, Do, simulate, trace_of
from tests.traces import PROCESS, THREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

US = 1_000
AUTOGRAD = THREAD + 1


def replayed(script: Sequence[Do]) -> Replay:
    run = simulate(script)
    trace = trace_of(run)
    schedule = build_schedule(trace, 0, run.end_ns)
    return Replay(schedule, host_time(trace, schedule))


def launches(count: int, *, before_ns: int = 0, gpu_ns: int) -> list[Do]:
    return [Do("launch", before_ns, gpu_ns=gpu_ns) for _ in range(count)]


PROGRAMS = {
    "host-bound": [*launches(20, before_ns=20 * US, gpu_ns=3 * US), Do("sync")] * 3,
    "gpu-bound": [*launches(20, before_ns=2 * US, gpu_ns=80 * US), Do("sync")] * 3,
    "syncs": [Do("launch", 4 * US, gpu_ns=50 * US), Do("sync", 2 * US)] * 10,
    "no sync": launches(30, before_ns=2 * US, gpu_ns=40 * US),
    "pageable": [
        Do("copy", 5 * US, gpu_ns=300 * US, pageable=True),
        *launches(4, before_ns=3 * US, gpu_ns=20 * US),
        Do("copy", 5 * US, gpu_ns=500 * US, pageable=True),
    ]
    * 4,
    "free": [*launches(5, gpu_ns=60 * US), Do("free", own_ns=300 * US), Do("malloc")] * 4,
    "two streams": [
        Do("launch", US, gpu_ns=90 * US, stream=7),
        Do("launch", US, gpu_ns=70 * US, stream=8),
        Do("sync"),
    ]
    * 5,
    "one of two streams": [
        Do("launch", US, gpu_ns=400 * US, stream=8),
        Do("launch", US, gpu_ns=30 * US, stream=7),
        Do("stream_sync", stream=7),
        Do("launch", US, gpu_ns=30 * US, stream=7),
        Do("sync"),
    ]
    * 4,
    "two steps ahead": [
        Do("launch", 5 * US, gpu_ns=200 * US),
        Do("event_sync", 2 * US, lag=2),
    ]
    * 12,
    "two GPUs": [
        Do("launch", US, gpu_ns=400 * US, device=1),
        Do("launch", US, gpu_ns=90 * US),
        Do("sync", US),
        Do("launch", US, gpu_ns=90 * US),
        Do("sync", US),
        Do("sync", US, device=1),
    ]
    * 4,
    "autograd": [
        *launches(20, before_ns=8 * US, gpu_ns=3 * US),
        *(Do("launch", 9 * US, gpu_ns=4 * US, thread=AUTOGRAD) for _ in range(20)),
        Do("sync", 30 * US),
    ]
    * 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_unchanged_it_takes_what_was_measured(name: str) -> None:
    replay = replayed(PROGRAMS[name])
    assert replay.unchanged.total_ns == replay.measured_ns
    assert replay.error < 0.01


@pytest.mark.parametrize("factor", [2, 4, 20])
@pytest.mark.parametrize("name", PROGRAMS)
def test_faster_kernels_give_what_they_give(name: str, factor: int) -> None:
    script = PROGRAMS[name]
    replay = replayed(script)
    ops = np.flatnonzero(replay.schedule.ops.kind == 0)
    faster = replay.program.duration_ns[ops] // factor
    truth = simulate(
        [replace(d, gpu_ns=d.gpu_ns // factor) if d.what == "launch" else d for d in script]
    )
    outcome = replay.run(changes.set_duration(ops, faster))
    # How long a wait takes to return is known where it was seen; elsewhere it is the usual time.
    assert outcome.total_ns == pytest.approx(truth.end_ns, rel=0.02)


@pytest.mark.parametrize("name", PROGRAMS)
def test_free_launches_give_what_they_give(name: str) -> None:
    script = PROGRAMS[name]
    replay = replayed(script)
    calls = np.flatnonzero(replay.schedule.calls.kind == CallKind.LAUNCH)
    gaps = replay.program.gap_ns[calls]
    truth = simulate(
        [replace(d, own_ns=0, before_ns=0) if d.what == "launch" else d for d in script]
    )
    outcome = replay.run(changes.free_calls(calls), changes.without_host_time(calls, gaps))
    assert outcome.total_ns == pytest.approx(truth.end_ns, rel=0.02)


def test_without_synchronization_the_host_runs_ahead() -> None:
    script = PROGRAMS["syncs"]
    replay = replayed(script)
    calls = np.flatnonzero(replay.schedule.calls.kind == CallKind.SYNC)
    truth = simulate([d for d in script if d.what != "sync"])
    outcome = replay.run(changes.without_waiting(calls))
    assert outcome.total_ns == pytest.approx(truth.end_ns, rel=0.03)
    assert outcome.saved_ns > 8 * TAIL_NS


def test_work_launched_before_the_recording_runs_before_that_launched_in_it() -> None:
    """torch.profiler starts while the GPU is behind: kernels come without their calls."""
    run = simulate(launches(60, before_ns=2 * US, gpu_ns=40 * US))
    first = run.calls[30]["start_ns"] - US
    run.calls[:] = [call for call in run.calls if call["start_ns"] >= first]
    trace = trace_of(run)
    schedule = build_schedule(trace, first, run.end_ns)
    replay = Replay(schedule, host_time(trace, schedule))
    unknown = schedule.ops.call < 0
    assert 20 < np.count_nonzero(unknown) < 31
    assert replay.unchanged.total_ns == replay.measured_ns
    assert replay.program.stream_gap_ns.min() >= 0
    own = np.flatnonzero(~unknown)
    outcome = replay.run(changes.set_duration(own, replay.program.duration_ns[own] // 4))
    assert outcome.saved_ns == pytest.approx(len(own) * 30 * US, rel=0.02)


def test_one_thread_that_waits_for_another_is_one_chain() -> None:
    replay = replayed(PROGRAMS["autograd"])
    assert set(replay.schedule.calls.host_thread) == {0}
    assert set(replay.schedule.calls.thread) == {0, 1}


def test_a_thread_that_only_helps_holds_nothing_up() -> None:
    """One that pins memory makes a call now and then, when it is handed a batch."""
    pins = Do("malloc", 40 * US, own_ns=2 * US, thread=THREAD + 2)
    script = [pins, *PROGRAMS["autograd"], pins]
    replay = replayed(script)
    calls = replay.schedule.calls
    host_threads = {
        int(thread): set(calls.host_thread[calls.thread == thread]) for thread in calls.thread
    }
    assert sorted(len(host_thread) for host_thread in host_threads.values()) == [1, 1, 1]
    assert len(set.union(*host_threads.values())) == 2
    # The last call of the helper comes with the end of the window, but what if the rest is faster?
    assert replay.run(changes.as_graphs()).saved_ns > 0.5 * replay.measured_ns


def test_a_copy_that_waits_for_the_work_before_it_costs_little_itself() -> None:
    script = [
        Do("launch", 4 * US, gpu_ns=500 * US),
        Do("copy", 2 * US, gpu_ns=5 * US, pageable=True),
    ] * 6
    replay = replayed(script)
    copies = np.flatnonzero(replay.schedule.calls.kind == CallKind.COPY)
    assert replay.program.own_ns[copies].max() < 20 * US


def test_threads_that_launch_side_by_side_are_two_chains() -> None:
    one = simulate(launches(50, before_ns=60 * US, gpu_ns=3 * US))
    two = simulate(launches(50, before_ns=61 * US, gpu_ns=3 * US))
    for call, kernel in zip(two.calls, two.kernels, strict=True):
        call |= {"thread": AUTOGRAD, "correlation": call["correlation"] + 1000}
        kernel |= {"stream": 8, "correlation": kernel["correlation"] + 1000}
    one.calls += two.calls
    one.kernels += two.kernels
    schedule = build_schedule(trace_of(one), 0, max(one.end_ns, two.end_ns))
    assert len(set(schedule.calls.host_thread)) == 2


def test_a_graph_launches_everything_at_once() -> None:
    script = PROGRAMS["host-bound"]
    outcome = replayed(script).run(changes.as_graphs())
    # Three stretches: one launch, twenty kernels with their gaps, the wait.
    stretch = changes.GRAPH_LAUNCH_NS + 2 * US + 20 * 3 * US + 19 * GAP_NS + TAIL_NS
    assert outcome.total_ns == pytest.approx(3 * stretch, rel=0.02)


def test_graphs_that_are_there_are_left_alone() -> None:
    run = simulate([Do("launch", 10 * US, own_ns=30 * US, gpu_ns=90 * US)] * 5)
    for call in run.calls:
        call["name"] = "cudaGraphLaunch"
    trace = trace_of(run)
    schedule = build_schedule(trace, 0, run.end_ns)
    assert Replay(schedule, host_time(trace, schedule)).run(changes.as_graphs()).saved_ns == 0


def marks_at(*moments_ns: int, thread: int = THREAD) -> pl.DataFrame:
    rows = [(moment_ns, PROCESS, thread) for moment_ns in moments_ns]
    return pl.DataFrame(rows, ["start_ns", "process", "thread"], orient="row")


def test_a_step_is_a_graph_where_nothing_waits() -> None:
    run = simulate(launches(40, before_ns=20 * US, gpu_ns=2 * US))
    trace = trace_of(run)
    marks = marks_at(*(run.calls[n]["start_ns"] for n in (0, 20)))
    schedule = build_schedule(trace, 0, run.end_ns, marks=marks)
    replay = Replay(schedule, host_time(trace, schedule))
    outcome = replay.run(changes.as_graphs())
    # The second graph comes after the first: two launches, and what the first graph takes longer.
    assert outcome.total_ns >= changes.GRAPH_LAUNCH_NS + 40 * 2 * US + 39 * GAP_NS
    # One graph for both is launched once; its kernels follow each other closer than launches do.
    gap_ns = GAP_NS // 4
    one = replay.run(changes.as_graphs(gap_ns=gap_ns, spans_steps=True))
    in_graph = changes.GRAPH_LAUNCH_NS + 2 * US + 40 * 2 * US + 39 * gap_ns
    assert one.total_ns == pytest.approx(in_graph, rel=0.05)
    assert one.total_ns < outcome.total_ns


@pytest.mark.parametrize("first", [0, 4, 8])
def test_work_on_its_way_when_the_window_begins_gets_faster_too(first: int) -> None:
    run = simulate(PROGRAMS["two steps ahead"])
    trace = trace_of(run)
    schedule = build_schedule(trace, run.calls[2 * first]["start_ns"], run.end_ns)
    replay = Replay(schedule, host_time(trace, schedule))
    assert replay.unchanged.total_ns == replay.measured_ns
    ops = np.arange(len(schedule.ops))
    halved = (schedule.ops.end_ns - schedule.ops.start_ns) // 2
    saved = replay.run(changes.set_duration(ops, halved)).saved_ns
    assert saved / replay.measured_ns == pytest.approx(0.5, abs=0.03)


def test_marks_on_a_thread_that_calls_nothing_hold_nothing() -> None:
    run = simulate(PROGRAMS["gpu-bound"])
    trace = trace_of(run)
    elsewhere = marks_at(0, run.end_ns, thread=THREAD + 5)
    schedule = build_schedule(trace, 0, run.end_ns, marks=elsewhere)
    replay = Replay(schedule, host_time(trace, schedule))
    ops = np.arange(len(schedule.ops))
    faster = replay.run(changes.set_duration(ops, replay.program.duration_ns // 2))
    assert faster.saved_ns > 0.4 * replay.measured_ns


def test_a_last_step_that_ends_with_its_gpu_work_ends_with_faster_work_too() -> None:
    """Nothing waits for the GPU: the step ends where its last kernel does, no call does."""
    run = simulate(launches(30, before_ns=2 * US, gpu_ns=40 * US))
    trace = trace_of(run)
    end_ns = int(trace.table("kernels", ["end_ns"])["end_ns"].max())  # type: ignore[arg-type]
    schedule = build_schedule(trace, 0, end_ns, marks=marks_at(0, end_ns))
    replay = Replay(schedule, host_time(trace, schedule))
    ops = np.arange(len(schedule.ops))
    faster = replay.run(changes.set_duration(ops, replay.program.duration_ns // 2))
    assert faster.saved_ns > 0.45 * replay.measured_ns


def test_streams_of_two_gpus_are_two_queues() -> None:
    schedule = build_schedule(trace_of(simulate(PROGRAMS["two GPUs"])), 0, 10_000 * US)
    assert len(set(schedule.ops.stream_id)) == 2


def test_calls_across_the_beginning_of_the_window_count_in_part() -> None:
    run = simulate([Do("malloc", own_ns=100 * US), Do("launch", 10 * US, gpu_ns=20 * US)])
    schedule = build_schedule(trace_of(run), 40 * US, run.end_ns)
    assert schedule.calls.start_ns[0] == 40 * US
    assert schedule.calls.end_ns[0] == 100 * US


def test_a_graph_helps_little_where_the_gpu_is_busy() -> None:
    replay = replayed(PROGRAMS["gpu-bound"])
    assert replay.run(changes.as_graphs()).saved_ns < 0.03 * replay.measured_ns


def test_work_that_becomes_one_takes_its_launches_along() -> None:
    script = PROGRAMS["host-bound"]
    replay = replayed(script)
    groups = np.arange(len(replay.schedule.ops)) // 5
    outcome = replay.run(changes.fuse(groups, np.full(12, 4 * US)))
    fused = [*launches(4, before_ns=20 * US, gpu_ns=4 * US), Do("sync")] * 3
    assert outcome.total_ns == pytest.approx(simulate(fused).end_ns, rel=0.02)


def test_work_that_is_gone_takes_its_launches_along() -> None:
    script = PROGRAMS["host-bound"]
    replay = replayed(script)
    every_other = np.arange(0, len(replay.schedule.ops), 2)
    left = [*launches(10, before_ns=20 * US, gpu_ns=3 * US), Do("sync")] * 3
    outcome = replay.run(changes.remove(every_other))
    assert outcome.total_ns == pytest.approx(simulate(left).end_ns, rel=0.02)


def test_copies_beside_the_kernels_cost_no_time_of_their_own() -> None:
    replay = replayed(PROGRAMS["pageable"])
    copies = np.flatnonzero(replay.schedule.ops.kind == 1)
    outcome = replay.run(changes.own_stream(copies))
    assert outcome.total_ns == pytest.approx(4 * 800 * US, rel=0.05)


def test_further_launches_cost_host_and_gpu() -> None:
    replay = replayed(PROGRAMS["host-bound"])
    calls = np.flatnonzero(replay.schedule.calls.kind == CallKind.LAUNCH)
    outcome = replay.run(changes.more_launches(calls, 2, host_ns=10 * US, gpu_ns=2 * US))
    more = [Do("launch", 20 * US, 25 * US, 7 * US) for _ in range(20)]
    truth = simulate([*more, Do("sync")] * 3)
    assert outcome.total_ns == pytest.approx(truth.end_ns, rel=0.02)
    assert outcome.saved_ns < 0


def test_changes_add_up_in_any_order_to_the_same() -> None:
    replay = replayed(PROGRAMS["gpu-bound"])
    ops = np.arange(len(replay.schedule.ops))
    faster = changes.set_duration(ops, replay.program.duration_ns // 10)
    graphs = changes.as_graphs()
    assert replay.run(faster, graphs).total_ns == replay.run(graphs, faster).total_ns


def test_the_hosts_of_a_replay_fill_its_time() -> None:
    replay = replayed(PROGRAMS["host-bound"])
    ops = np.arange(len(replay.schedule.ops))
    outcome = replay.run(
        changes.set_duration(ops, replay.program.duration_ns // 2), changes.as_graphs()
    )
    hosts = replay.hosts_of(outcome)
    whole = hosts.spent(np.array([0]), np.array([0]), outcome.timing.call_end_ns[-1:])
    assert whole.sum() == outcome.timing.call_end_ns[-1]


def test_other_processes_keep_their_share_of_the_gpu() -> None:
    alone = replayed(PROGRAMS["host-bound"])
    busy_ns = alone.busy_ns(alone.unchanged)
    sharing = GpuSharing(device=0, others_share=0.4, own_share=1.0)
    shared = Replay(alone.schedule, alone.hosts, sharing)
    assert shared.unchanged.total_ns == alone.unchanged.total_ns
    everything = (changes.free_calls(np.arange(len(alone.schedule.calls))), changes.as_graphs())
    assert alone.run(*everything).total_ns < busy_ns / 0.6
    result = shared.run(*everything)
    assert result.total_ns == pytest.approx(shared.busy_ns(result) / 0.6, abs=2)
    assert result.timing.end_ns - result.timing.start_ns == result.total_ns
    assert shared.run(*everything, alone_on_gpu).total_ns == alone.run(*everything).total_ns


@pytest.mark.parametrize(
    ("own", "others", "share", "own_share"),
    [
        ([(0, 40)], [(50, 80)], 0.3, 1.0),  # in turns
        ([(0, 40)], [(0, 40)], 0.2, 0.5),  # at once: each has half of the GPU
        ([(0, 40)], [(20, 60)], 0.3, 0.75),
    ],
)
def test_what_others_take(
    own: list[tuple[int, int]], others: list[tuple[int, int]], share: float, own_share: float
) -> None:
    own_spans, other_spans = (Intervals.from_arrays(*np.array(p).T) for p in (own, others))
    sharing = GpuSharing.of(0, own_spans, other_spans, length_ns=100)
    assert sharing.others_share == pytest.approx(share)
    assert sharing.own_share == pytest.approx(own_share)
    assert sharing.gpu_share == pytest.approx(1 - share)
    # A process that always has work gets half.
    assert GpuSharing(0, others_share=0.9, own_share=1.0).gpu_share == 0.5


scripts = st.lists(
    st.builds(
        Do,
        what=st.sampled_from(["launch", "launch", "launch", "copy", "sync", "stream_sync", "free"]),
        before_ns=st.integers(0, 40 * US),
        own_ns=st.integers(1 * US, 12 * US),
        gpu_ns=st.integers(1 * US, 90 * US),
        stream=st.sampled_from([7, 8]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(scripts)
def test_any_program_is_reproduced_and_nothing_makes_it_slower(script: list[Do]) -> None:
    replay = replayed(script)
    assert replay.unchanged.total_ns == replay.measured_ns
    ops, calls = np.arange(len(replay.schedule.ops)), np.arange(len(replay.schedule.calls))
    for change in (
        changes.set_duration(ops, replay.program.duration_ns // 2),
        changes.without_waiting(calls),
        changes.free_calls(calls),
        changes.without_host_time(calls, replay.program.gap_ns // 2),
        changes.remove(ops[::2]),
    ):
        assert replay.run(change).saved_ns >= 0
    # The more a change takes away, the more it saves.
    for more, less in (
        (changes.remove(ops), changes.remove(ops[::2])),
        (changes.without_waiting(calls), changes.without_waiting(calls[::2])),
        (
            changes.set_duration(ops, replay.program.duration_ns // 4),
            changes.set_duration(ops, replay.program.duration_ns // 2),
        ),
    ):
        assert replay.run(more).saved_ns >= replay.run(less).saved_ns


@settings(max_examples=30, deadline=None)
@given(scripts)
def test_many_activities_at_once_run_as_one_by_one(script: list[Do]) -> None:
    replay = replayed(script)
    ops, calls = np.arange(len(replay.schedule.ops)), np.arange(len(replay.schedule.calls))
    for change in (
        changes.without_waiting(calls),
        changes.remove(ops[::3]),
        changes.own_stream(ops[::2]),
    ):
        timings = []
        for short in (1, 1 << 30):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(simulation, "_SHORT", short)
                timings.append(replay.run(change).timing)
        at_once, one_by_one = timings
        assert at_once.end_ns == one_by_one.end_ns
        assert at_once.op_start_ns.tolist() == one_by_one.op_start_ns.tolist()
        assert at_once.call_end_ns.tolist() == one_by_one.call_end_ns.tolist()
