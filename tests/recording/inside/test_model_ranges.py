from __future__ import annotations

import copy
import io
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gpusight as gs
from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.nvtx_backend import DOMAIN
from tests.recording.inside.nvtx_log import NvtxLog, logged_nvtx


@pytest.fixture
def log() -> Iterator[NvtxLog]:
    with logged_nvtx() as listener:
        yield listener
        assert listener.open == []


class Block(nn.Module):
    """Two layers on one input, a change in place, a view, a module that does nothing, a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Identity()

    def forward(self, x: Tensor) -> Any:
        return x + self.drop(self.act(self.q(x) + self.k(x).view(-1, 4)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x).add_(1)}


def tree(lines: list[str]) -> list[str]:
    """Write ranges indented by how deep they lie."""
    rows, depth = [], 0
    for text in lines:
        depth -= text[0] == "-"
        if text[0] == "+":
            rows.append("  " * depth + text[1:])
            depth += 1
    return rows


FORWARD = [
    "forward (Model)",
    "  emb (Embedding)",
    "  layers.0 (Block)",
    "    layers.0.q (Linear)",
    "    layers.0.k (Linear)",
    "    layers.0.act (ReLU)",
    "    layers.0.drop (Identity)",
    "  layers.1 (Block)",
    "    layers.1.q (Linear)",
    "    layers.1.k (Linear)",
    "    layers.1.act (ReLU)",
    "    layers.1.drop (Identity)",
    "  head (Linear)",
]
BACKWARD = [
    "backward (Model)",
    "  head (Linear) backward",
    "  layers.1 (Block) backward",
    "    layers.1.act (ReLU) backward",
    "    layers.1.k (Linear) backward",
    "    layers.1.q (Linear) backward",
    "  layers.0 (Block) backward",
    "    layers.0.act (ReLU) backward",
    "    layers.0.k (Linear) backward",
    "    layers.0.q (Linear) backward",
    "  emb (Embedding) backward",
]


def run(model: nn.Module) -> None:
    model(torch.arange(3))["logits"].sum().backward()


def test_every_module_is_marked_forward_and_backward(log: NvtxLog) -> None:
    model = Model()
    gs.annotate_model(model)
    run(model)
    assert tree(log.lines()) == FORWARD
    assert tree(log.lines(DOMAIN)) == BACKWARD
    assert log.kinds() == {"push", "pop"}


def test_gradients_are_what_they_were(log: NvtxLog) -> None:
    torch.manual_seed(0)
    plain = Model()
    marked = copy.deepcopy(plain)
    gs.annotate_model(marked)
    run(plain)
    run(marked)
    for a, b in zip(plain.parameters(), marked.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    assert log.events


def test_the_work_of_a_module_lies_in_its_range(log: NvtxLog) -> None:
    """Ask autograd's own nodes which ranges were open when they ran."""
    model, seen = Model(), {}

    def note(name: str, output: Tensor) -> None:
        node = output.grad_fn
        assert node is not None
        node.register_hook(lambda *_: seen.update({name: log.open}))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _m, _i, out, name=name: note(name, out))
    gs.annotate_model(model)
    run(model)
    assert len(seen) == 5
    for name, ranges in seen.items():
        assert ranges[-1] == f"{name} (Linear) backward"
        assert ranges[0] == "backward (Model)"


def test_a_range_stays_open_though_its_output_is_that_of_the_modules_around_it(
    log: NvtxLog,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    gs.annotate_model(model)
    out = model(torch.ones(2))
    ran: list[str] = []
    out.grad_fn.register_hook(lambda *_: ran.extend(log.open))
    out.sum().backward()
    assert ran == ["backward (Sequential)", "1 (Sequential) backward", "1.1 (ReLU) backward"]
    assert len(tree(log.lines(DOMAIN))) == 5


def test_a_range_lasts_until_all_its_inputs_have_gradients(log: NvtxLog) -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.exp().sin() * b

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.two = nn.Linear(2, 2), nn.Linear(2, 2), Two()

        def forward(self, x: Tensor) -> Any:
            right, left = self.right(x), self.left(x)
            left.grad_fn.register_prehook(lambda _: gs.mark(str(log.open)))
            return self.two(left * 1, right * 1)

    model = Net()
    gs.annotate_model(model)
    model(torch.ones(2)).sum().backward()
    assert tree(log.lines(DOMAIN))[1:] == [
        "  two (Two) backward",
        "  left (Linear) backward",
        "  right (Linear) backward",
    ]
    marks = [text for text in log.lines() if text[0] == "!"]
    assert marks == ["!['backward (Net)', 'left (Linear) backward']"]


@pytest.mark.parametrize(("depth", "rows"), [(0, 1), (1, 3), (2, 5), (None, 13)])
def test_depth_says_how_far_down(log: NvtxLog, depth: int | None, rows: int) -> None:
    model = Model()
    gs.annotate_model(model, depth=depth, backward=False)
    run(model)
    assert len(tree(log.lines())) == rows
    assert log.lines(DOMAIN) == []


def test_include_says_which(log: NvtxLog) -> None:
    model = Model()
    with gs.annotate_model(model, include=r"\.q$", domain="mine"):
        run(model)
    with gs.annotate_model(model, include=lambda _, module: isinstance(module, nn.Embedding)):
        run(model)
    assert tree(log.lines("mine")) == [
        *("layers.0.q (Linear)", "layers.1.q (Linear)"),
        *("layers.1.q (Linear) backward", "layers.0.q (Linear) backward"),
    ]
    assert tree(log.lines()) == ["emb (Embedding)"]
    with pytest.raises(UsageError, match="regular expression"):
        gs.annotate_model(model, include="(")


def test_removed_ranges_are_gone(log: NvtxLog) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ranges = gs.annotate_model(model, optimizer=optimizer)
    ranges.remove()
    ranges.remove()
    run(model)
    optimizer.step()
    assert log.events == []
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_model_that_is_marked_again_has_only_the_new_ranges(log: NvtxLog) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ranges = gs.annotate_model(model, optimizer=optimizer)
    run(model)
    optimizer.step()
    assert tree(log.lines()) == [*FORWARD, "optimizer.step (SGD)"]
    assert tree(log.lines(DOMAIN)) == BACKWARD
    ranges.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_exception_closes_the_ranges(log: NvtxLog) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    model = Failing()
    gs.annotate_model(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(3))
    assert log.open == []
    model(torch.ones(2)).sum().backward()
    assert tree(log.lines())[-2:] == ["forward (Failing)", "  inner (Linear)"]


def test_an_optimizer_is_marked_also_when_a_step_fails(log: NvtxLog) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    gs.annotate_model(model, optimizer=[optimizer], depth=0)

    def fail() -> float:
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.step(fail)
    optimizer.step()
    name = "optimizer.step (AdamW)"
    assert log.lines() == [f"+{name}", f"-{name}"] * 2
    with pytest.raises(UsageError, match="no hooks"):
        gs.annotate_model(model, optimizer=object())


def test_a_module_called_twice_has_two_ranges(log: NvtxLog) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return self.b(self.a(x))

    model = Twice()
    gs.annotate_model(model)
    model(torch.ones(2)).sum().backward()
    assert tree(log.lines()) == ["forward (Twice)", "  a (Linear)", "  a (Linear)"]
    assert tree(log.lines(DOMAIN))[1:] == ["  a (Linear) backward"] * 2


def test_outputs_of_any_shape_and_keyword_inputs_are_followed(log: NvtxLog) -> None:
    @dataclass
    class Output:
        hidden: tuple[Tensor, list[Tensor]]
        length: int

    class Inner(nn.Module):
        def forward(self, *, x: Tensor) -> Output:
            return Output((x * 2, [x * 3]), 1)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.first = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Output = self.inner(x=self.first(x))
            return out.hidden[1][0]

    model = Outer()
    gs.annotate_model(model)
    model(torch.ones(2)).sum().backward()
    assert tree(log.lines(DOMAIN)) == [
        "backward (Outer)",
        "  inner (Inner) backward",
        "  first (Linear) backward",
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_are_recomputed_inside_the_backward(log: NvtxLog, *, reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.b, self.a(x), use_reentrant=reentrant).relu()

    plain = Net()
    model = copy.deepcopy(plain)
    gs.annotate_model(model)
    for net in (plain, model):
        net(torch.ones(2)).sum().backward()
        net(torch.ones(2)).sum().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    assert tree(log.lines())[:4] == ["forward (Net)", "  a (Linear)", "  b (Linear)", "b (Linear)"]
    back = tree(log.lines(DOMAIN))
    assert back[0] == "backward (Net)"
    assert [row.strip() for row in back[1:3]] == ["b (Linear) backward", "a (Linear) backward"]
    assert len(back) == 6


def test_without_gradients_there_is_no_backward(log: NvtxLog) -> None:
    model = Model().eval()
    gs.annotate_model(model)
    with torch.no_grad():
        model(torch.arange(3))
    assert tree(log.lines()) == FORWARD
    assert log.lines(DOMAIN) == []


def test_a_graph_may_be_run_backward_twice_and_on_another_thread(log: NvtxLog) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    gs.annotate_model(model)
    loss = model(torch.ones(2)).sum()
    loss.backward(retain_graph=True)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    back = ["backward (Sequential)", "  1 (ReLU) backward", "  0 (Linear) backward"]
    assert tree(log.lines(DOMAIN)) == back * 2


def test_several_threads_share_a_pass_without_stacks(log: NvtxLog) -> None:
    model = nn.DataParallel(nn.Linear(2, 2))
    gs.annotate_model(model)
    model(torch.ones(1, 2)).sum().backward()
    own = {event.what for event in log.events if event.domain == DOMAIN}
    assert own == {"start", "end"}
    assert tree(log.lines(DOMAIN)) == [
        "backward (DataParallel)",
        "  module (Linear) backward",
    ]


def test_hooks_keep_no_graph_alive(log: NvtxLog) -> None:
    class Token:
        pass

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.token = Token()
            tokens.append(weakref.ref(ctx.token))
            return x * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return Held.apply(self.inner(x))  # type: ignore[no-untyped-call]

    tokens: list[weakref.ref[Token]] = []
    model = Net()
    gs.annotate_model(model)
    out = model(torch.ones(2))
    assert tokens[0]() is not None
    del out
    assert tokens[0]() is None
    assert log.events


@pytest.mark.parametrize("before", [True, False])
def test_a_compiled_model_stays_one_graph(log: NvtxLog, *, before: bool) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    if before:
        gs.annotate_model(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    if not before:
        gs.annotate_model(compiled)
    compiled(torch.ones(2)).sum().backward()
    assert not any("Linear" in event.name for event in log.events)


def test_a_model_is_copied_and_saved_with_its_ranges(log: NvtxLog) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    gs.annotate_model(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(torch.ones(2))
    assert log.events == []
    copy.deepcopy(model)(torch.ones(2))
    assert tree(log.lines()) == ["forward (Sequential)", "  0 (Linear)"]


def test_nothing_is_followed_while_nobody_listens() -> None:
    nvtx_backend.choose_again()
    model = Model()
    gs.annotate_model(model, ops=True)
    out = model(torch.arange(3))["logits"]
    assert not out._backward_hooks
    out.sum().backward()


def test_operations_need_a_gpu(log: NvtxLog) -> None:
    with pytest.raises(RecordError, match="GPU"):
        gs.annotate_model(nn.Linear(2, 2), ops=True)
    assert log.events == []


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="int"):
        gs.annotate_model(3)
