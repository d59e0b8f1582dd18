"""What is said of a timeline's diagnosis, the same in every form: head, ledger, gains, verdict."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.findings.timeline.judge import MOST_ERROR
from gpusight.findings.timeline.rule import Rule
from gpusight.render.cells import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.ledger.ledger import DeviceLedger
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.findings.timeline.rule import Where

WORTH = 0.04
"""Findings below this part of the window are small: a sound program has some too."""
_SMALL = 0.005
"""Parts of the ledger below this are summed up as the rest."""
_IDLE = "idle"
_COMPUTE = "compute"
REST = "the rest"
UNSURE = "The rank changes when what a profiler adds to each launch is taken off."
_MAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the window, as it is drawn."""

    name: str
    """`compute`, `copy/h2d`, `communication`, `idle/input` …, or the rest."""
    share: float

    @property
    def idle(self) -> bool:
        """The GPU had nothing to do."""
        return self.name.startswith(_IDLE)


def judged_device(diagnosis: TimelineDiagnosis) -> DeviceLedger | None:
    """Give the ledger of the GPU that was judged; None where no GPU worked."""
    devices = diagnosis.ledger.devices
    wanted = diagnosis.meta.get("device")
    return next((d for d in devices if d.device == wanted), devices[0] if devices else None)


def slices(device: DeviceLedger) -> list[Slice]:
    """Give the parts of the window, the largest first; all computing is one."""
    shares: defaultdict[str, float] = defaultdict(float)
    for entry in device.entries:
        group = entry.entry.split("/")[0]
        shares[_COMPUTE if group == _COMPUTE else entry.entry] += entry.share or 0.0
    return _largest(shares)


def computing(device: DeviceLedger) -> list[Slice]:
    """Give what the GPU computed, by category, the largest first."""
    found = (e for e in device.entries if e.entry.startswith(f"{_COMPUTE}/"))
    return _largest({e.entry.split("/", 1)[1]: e.share or 0.0 for e in found})


def _largest(shares: dict[str, float]) -> list[Slice]:
    ordered = sorted(shares.items(), key=lambda one: -one[1])
    shown = [Slice(name, share) for name, share in ordered if share >= _SMALL]
    rest = sum(share for _, share in ordered if share < _SMALL)
    return [*shown, Slice(REST, rest)] if rest > 0 else shown


def slice_texts(parts: list[Slice]) -> list[str]:
    """Write parts as `idle/input 79.9%`."""
    return [f"{one.name} {units.format_share(one.share)}" for one in parts]


def busy(device: DeviceLedger) -> float:
    """Give the part of the window in which a GPU did anything."""
    return sum(e.share or 0.0 for e in device.entries if not e.entry.startswith(_IDLE))


def head(diagnosis: TimelineDiagnosis) -> str:
    """Say what was looked at: the capture, the GPU, the window, how busy it was."""
    name = Path(str(diagnosis.meta.get("path", ""))).name or "capture"
    facts = [diagnosis.meta.get("gpu"), window(diagnosis), *_busy_text(diagnosis)]
    return safe_text(f"{name}: {', '.join(str(fact) for fact in facts if fact)}")


def window(diagnosis: TimelineDiagnosis) -> str:
    """Say which time was looked at: `10 steps of 12.52 ms`."""
    length = units.format_time(diagnosis.step_ns)
    out = len(diagnosis.focus.left_out)
    without = f" ({out:,} left out)" if out else ""
    if not diagnosis.steps:
        return f"{length}, no steps known{without}"
    steps = "1 step" if diagnosis.steps == 1 else f"{diagnosis.steps:,} steps"
    return f"{steps} of {length}{without}"


def _busy_text(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    device = judged_device(diagnosis)
    if device is None:
        return
    every = [busy(one) for one in diagnosis.ledger.devices]
    if len(every) == 1:
        yield f"GPU busy {units.format_share(busy(device))}"
        return
    span = f"{units.format_share(min(every))} to {units.format_share(max(every))}"
    yield f"GPU {device.device} busy {units.format_share(busy(device))} (all {len(every)}: {span})"


def verdict(diagnosis: TimelineDiagnosis) -> str:
    """Say that there is little or nothing to gain, and what the GPU does; empty where there is."""
    best = max((f.share or 0.0 for f in diagnosis.findings), default=0.0)
    if best >= WORTH:
        return ""
    if not diagnosis.clean and not diagnosis.findings:
        return "No rule could be judged on this capture."
    doing = _doing(judged_device(diagnosis))
    if best:
        return f"Nothing gives back more than {units.format_share(best)} of the window{doing}."
    least = units.format_share(Rule.least_share)
    return f"Nothing found that gives back {least} of the window or more{doing}."


def _doing(device: DeviceLedger | None) -> str:
    if device is None:
        return ""
    working = busy(device)
    if working < _MAIN_SHARE:
        idle = [one for one in slices(device) if one.idle]
        return f", though the GPU is idle: {', '.join(slice_texts(idle))}"
    kinds = computing(device)[:2] or slices(device)[:1]
    kinds_text = ", ".join(slice_texts(kinds))
    return f": the GPU is busy {units.format_share(working)} of it ({kinds_text})"


def replayed(diagnosis: TimelineDiagnosis) -> str:
    """Say how well the replay, which tells the gains, gives the measured time.

    Empty where that is bad: then a note says so already.
    """
    facts = diagnosis.replay
    if facts is None:
        return "Nothing could be replayed: times given back are not known."
    if facts.error > MOST_ERROR:
        return ""
    what = units.format_time(facts.length_ns)
    if facts.steps:
        every = facts.steps == diagnosis.steps
        what = (
            f"{facts.steps:,} steps" if every else f"{facts.steps:,} of {diagnosis.steps:,} steps"
        )
    error = units.format_share(facts.error)
    return f"Gains are from a replay of {what} that misses the measured time by {error}."


def per_step(diagnosis: TimelineDiagnosis, ns: float | None) -> str:
    """Show time of the window as time of a step."""
    return units.format_time(None if ns is None else ns / max(1, diagnosis.steps))


def gain(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Say what a fix gives back, alone and after those above it."""
    if finding.recoverable_ns is None:
        return "not a matter of time"
    alone, after = (per_step(diagnosis, ns) for ns in (finding.recoverable_ns, finding.after_ns))
    each = " a step" if diagnosis.steps else ""
    text = f"gives back {alone}{each}, {units.format_share(finding.share)} of the window"
    if not finding.recoverable_ns:
        text = "gives back nothing by itself"
    return text if after in (alone, units.MISSING) else f"{text}; {after} after those above it"


def confidence(finding: TimelineFinding) -> str:
    """Say how far to trust a finding, and its rank."""
    return finding.confidence.value + ("" if finding.robust else ", rank unsure")


def place(diagnosis: TimelineDiagnosis, where: Where) -> tuple[str, str]:
    """Say how much of a finding a place has: its time and how often, in a step."""
    steps = max(1, diagnosis.steps)
    time = "" if where.ns is None else units.format_time(where.ns / steps)
    if where.count is None:
        return time, ""
    often = _times(where.count / steps)
    return time, f"{often} a step" if diagnosis.steps else often


def _times(count: float) -> str:
    """Say how often: a mean need not be whole, but its decimals are soon noise."""
    if count == 1:
        return "once"
    digits = 0 if count == round(count) or count >= 100 else 1 if count >= 0.1 else 2
    return f"{count:,.{digits}f} times"


def not_judged(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Give the rules that could not be judged with the reason, those of one reason together."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for rule, reason in diagnosis.not_applicable.items():
        if rule not in diagnosis.covered:
            by_reason[reason].append(rule)
    return [(", ".join(rules), reason) for reason, rules in by_reason.items()]


def covered(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Give the findings whose cause others name, with these: `a, b` and the rule that has them."""
    by_rule: defaultdict[str, list[str]] = defaultdict(list)
    for rule, by in diagnosis.covered.items():
        by_rule[by].append(rule)
    return [(", ".join(rules), by) for by, rules in by_rule.items()]


def language(code: str) -> str:
    """Tell in which language lines to paste are written."""
    return (
        "cuda"
        if any(line.rstrip().endswith((";", "{")) for line in code.splitlines())
        else "python"
    )
