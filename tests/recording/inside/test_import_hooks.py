"""Steps and ranges are found in programs that do not mark them."""

from __future__ import annotations

import subprocess
import sys

_LISTEN = """
from gpusight.recording.inside.step_hub import HUB

class EventLog:
    events = []
    def step_began(self, number): self.events.append(f"+{number}")
    def step_ended(self, number): self.events.append(f"-{number}")
    def range_began(self, name): self.events.append(f"[{name}")
    def range_ended(self, name): self.events.append(f"{name}]")

def print_events():
    print(" ".join(EventLog.events))
    EventLog.events.clear()

HUB.listen(EventLog())
"""
_RANGES = """
from gpusight.recording.inside import import_hooks
import_hooks.hook_ranges()
import nvtx

with nvtx.annotate("a", domain="mine"):
    nvtx.push_range("b")
    nvtx.push_range("c", domain="mine")
    nvtx.pop_range("mine")
    nvtx.pop_range()
print_events()

@nvtx.annotate()
def work():
    raise KeyError

try:
    work()
except KeyError:
    print_events()
first, second = nvtx.start_range("d"), nvtx.start_range(message="e")
nvtx.end_range(second)
nvtx.end_range(first)
nvtx.pop_range()
print_events()
"""
_STEPS = """
from gpusight.recording.inside.step_hub import OptimizerSteps
import gc, torch

gc.freeze()  # ends in a quarter of the time
made = []
steps = OptimizerSteps(torch, lambda: made.append(1), marks=True)
steps.install()
model = torch.nn.Linear(2, 2)

def loss(scale=1.0):
    return model(torch.ones(1, 2)).sum() * scale

def closure():
    value = loss()
    value.backward()
    return value

first = torch.optim.LBFGS(model.parameters(), max_iter=2)
other = torch.optim.SGD(model.parameters(), lr=0.1)
first.step(closure)
other.step()
first.step(closure)
print_events()

del first
scaler = torch.amp.GradScaler("cpu")
for scale in (1.0, float("inf"), 1.0):
    scaler.scale(loss(scale)).backward()
    scaler.step(other)
    scaler.update()
    other.zero_grad()
print_events()

compiled = torch.compile(other.step, backend="eager")
loss().backward()
compiled()
print_events()

HUB.end_step(HUB.begin_step())
loss().backward()
other.step()
print_events()

steps.remove()
other.step()
torch.optim.SGD(model.parameters(), lr=0.1)
print(len(made))
"""


def _run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "ignore", "-c", _LISTEN + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_ranges_of_the_nvtx_package_without_a_tool_that_listens() -> None:
    assert _run(_RANGES) == [
        "[a@mine [b [c@mine c@mine] b] a@mine]",
        "[work work]",
        "[d [e e] d]",
    ]


def test_steps_of_the_first_optimizer() -> None:
    lines = _run(_STEPS)
    assert lines == [
        "+0 -0 +1 -1 +2",
        "-2 +3 -3 +4 -4 +5",  # another optimizer's now, one step of it left out
        "",  # a compiled one is not seen
        "+0 -0",  # from the first step that the program tells, only those count
        "2",
    ]
