"""Loops of science and learning: graphs, environments, solvers, experts, samplers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.programs.graphs import graphed

if TYPE_CHECKING:
    from collections.abc import Callable


def elementwise_formulas(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Write LayerNorm and GELU as formulas: each operation reads and writes the tensor."""
    size = (16, 2048, 2048) if device == "cuda" else (2, 16, 64)
    inputs = torch.randn(size, device=device)
    gain, shift = torch.ones(size[-1], device=device), torch.zeros(size[-1], device=device)

    def by_formula(x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        normal = (x - mean) / torch.sqrt(variance + 1e-5) * gain + shift
        inner = math.sqrt(2 / math.pi) * (normal + 0.044715 * normal**3)
        return 0.5 * normal * (1 + torch.tanh(inner))

    def by_operators(x: Tensor) -> Tensor:
        normal = functional.layer_norm(x, x.shape[-1:], gain, shift)
        return functional.gelu(normal, approximate="tanh")

    layer = by_operators if repaired else by_formula

    @torch.no_grad()
    def step(index: int) -> Tensor:  # noqa: ARG001
        x = inputs
        for _ in range(4):
            x = layer(x)
        return x

    return step


def graph_messages(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Sum messages over the edges of a graph: gather, then index_add.

    Repaired: the same sum as a product with the sparse matrix of the graph.
    """
    nodes, edges, width = (40_000, 1_200_000, 128) if device == "cuda" else (50, 200, 8)
    source, target = torch.randint(0, nodes, (2, edges), device=device)
    features = torch.randn(nodes, width, device=device)
    layers = [nn.Linear(width, width).to(device) for _ in range(3)]
    indices, values = torch.stack([target, source]), torch.ones(edges, device=device)
    adjacency = torch.sparse_coo_tensor(indices, values, (nodes, nodes)).coalesce().to_sparse_csr()

    @torch.no_grad()
    def step(index: int) -> Tensor:  # noqa: ARG001
        x = features
        for layer in layers:
            if repaired:
                summed = adjacency @ x
            else:
                summed = torch.zeros_like(x).index_add_(0, target, x[source])
            x = functional.relu(layer(summed / 30))
        return x

    return step


class _Pendulum:
    """An environment in plain Python."""

    def __init__(self, angle: float) -> None:
        self.angle, self.speed = angle, 0.0

    def observe(self) -> list[float]:
        return [math.cos(self.angle), math.sin(self.angle), self.speed]

    def act(self, torque: float) -> float:
        self.speed += 0.05 * (15 * math.sin(self.angle) + 3 * torque)
        self.speed = max(-8.0, min(8.0, self.speed))
        self.angle += 0.05 * self.speed
        return -(self.angle**2 + 0.1 * self.speed**2)


def cpu_environment(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Roll out pendulums and improve the policy by the rewards.

    Each environment asks for its own action, which waits for the GPU. Repaired: one request for
    all environments, which NumPy moves together.
    """
    import numpy as np

    number, moments = (16, 12) if device == "cuda" else (4, 3)
    policy = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
    policy = nn.Sequential(policy, nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)
    starts = np.linspace(-3, 3, number)

    def one_by_one() -> tuple[Tensor, Tensor]:
        pendulums = [_Pendulum(float(start)) for start in starts]
        observations, rewards = [], []
        for _ in range(moments):
            for pendulum in pendulums:
                observation = torch.tensor(pendulum.observe(), device=device)
                with torch.no_grad():
                    torque = policy(observation).item()
                observations.append(observation)
                rewards.append(pendulum.act(torque))
        return torch.stack(observations), torch.tensor(rewards, device=device)

    def together() -> tuple[Tensor, Tensor]:
        angle, speed = starts.copy(), np.zeros(number)
        observations, rewards = [], []
        for _ in range(moments):
            sensors = np.stack([np.cos(angle), np.sin(angle), speed], 1).astype(np.float32)
            observation = torch.from_numpy(sensors).to(device)
            with torch.no_grad():
                torque = policy(observation)[:, 0].cpu().numpy()
            observations.append(observation)
            speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
            angle = angle + 0.05 * speed
            rewards.append(-(angle**2 + 0.1 * speed**2))
        flat = torch.from_numpy(np.concatenate(rewards).astype(np.float32))
        return torch.cat(observations), flat.to(device)

    roll_out = together if repaired else one_by_one

    def step(index: int) -> Tensor:  # noqa: ARG001
        observations, rewards = roll_out()
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        loss: Tensor = -(policy(observations)[:, 0] * advantage).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ode_solver(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Solve an ODE of a small network by 60 steps of Runge-Kutta; repaired: as a CUDA graph."""
    width, number = (128, 60) if device == "cuda" else (8, 4)
    field = nn.Sequential(nn.Linear(width, 256), nn.Tanh(), nn.Linear(256, width)).to(device)
    starts = torch.randn(4, 512, width, device=device)
    state = starts[0].clone()

    @torch.no_grad()
    def solve() -> None:
        x, h = state.clone(), 1 / number
        for _ in range(number):
            k1 = field(x)
            k2 = field(x + h / 2 * k1)
            k3 = field(x + h / 2 * k2)
            k4 = field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        state.copy_(x)

    solver = graphed(solve, device) if repaired else solve

    def step(index: int) -> Tensor:
        state.copy_(starts[index % 4])
        solver()
        return state

    return step


def expert_loop(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Send tokens to 32 experts, one after the other, each with the tokens nonzero() finds.

    Repaired: tokens sorted into a buffer of fixed capacity, all experts in one batched matmul.
    """
    experts, width, tokens = (32, 512, 8192) if device == "cuda" else (4, 16, 64)
    router = nn.Linear(width, experts).to(device)
    first = (torch.randn(experts, width, 2 * width, device=device) / 32).requires_grad_()
    second = (torch.randn(experts, 2 * width, width, device=device) / 32).requires_grad_()
    parameters = [*router.parameters(), first, second]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    batches = torch.randn(4, tokens, width, device=device)
    capacity = 3 * tokens // experts

    def one_by_one(x: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(experts):
            rows = (chosen == expert).nonzero()[:, 0]
            if rows.numel() == 0:
                continue
            hidden = functional.gelu(x[rows] @ first[expert])
            out = out.index_add(0, rows, (hidden @ second[expert]).to(out.dtype))
        return out

    def batched(x: Tensor, chosen: Tensor) -> Tensor:
        counts = functional.one_hot(chosen, experts)
        position = (counts.cumsum(0) * counts).sum(1) - 1
        kept = (position < capacity).to(x.dtype)[:, None]
        slot = chosen * capacity + position.clamp(max=capacity - 1)
        buffer = torch.zeros(experts * capacity, x.shape[1], device=device, dtype=x.dtype)
        buffer = buffer.index_add(0, slot, x * kept)
        hidden = functional.gelu(torch.bmm(buffer.view(experts, capacity, -1), first))
        return torch.bmm(hidden, second).flatten(0, 1)[slot].to(x.dtype) * kept

    mix = batched if repaired else one_by_one

    def step(index: int) -> Tensor:
        x = batches[index % 4]
        with torch.autocast(device, torch.bfloat16):
            weights, chosen = torch.softmax(router(x).float(), -1).max(-1)
            loss: Tensor = (mix(x, chosen) * weights[:, None] - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def lbfgs_fit(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Fit a small network by torch's LBFGS, whose line search reads the loss on the host.

    Repaired: the same two-loop recursion with a fixed step, and every scalar left on the GPU.
    """
    rows = 4096 if device == "cuda" else 64
    x = torch.linspace(-3, 3, rows, device=device)[:, None]
    y = torch.sin(3 * x)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = nn.Sequential(model, nn.Linear(64, 1)).to(device)
    parameters = list(model.parameters())
    if not repaired:
        optimizer = torch.optim.LBFGS(
            parameters, lr=0.5, max_iter=8, history_size=8, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return lambda index: torch.as_tensor(optimizer.step(closure))  # type: ignore[arg-type,no-untyped-call,unused-ignore]  # noqa: ARG005

    history: list[tuple[Tensor, Tensor]] = []

    def gradient() -> tuple[Tensor, Tensor]:
        loss = functional.mse_loss(model(x), y)
        parts = torch.autograd.grad(loss, parameters)
        return loss.detach(), torch.cat([part.flatten() for part in parts])

    def direction(slope: Tensor) -> Tensor:
        chosen, factors = slope, []
        for moved, changed in reversed(history):
            factor = moved.dot(chosen) / changed.dot(moved).clamp_min(1e-10)
            factors.append(factor)
            chosen = chosen - factor * changed
        for (moved, changed), factor in zip(history, reversed(factors), strict=True):
            back = changed.dot(chosen) / changed.dot(moved).clamp_min(1e-10)
            chosen = chosen + (factor - back) * moved
        return -chosen

    def step(index: int) -> Tensor:  # noqa: ARG001
        loss, slope = gradient()
        for _ in range(8):
            moved = 0.05 * direction(slope)
            with torch.no_grad():
                parts = moved.split([parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.add_(part.view_as(parameter))
            loss, new_slope = gradient()
            history.append((moved, new_slope - slope))
            slope = new_slope
            del history[:-8]
        return loss

    return step


class _Denoiser(nn.Module):
    """Convolutions with a time embedding."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.time = nn.Linear(1, channels)
        self.inner = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(6))
        self.outer = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.inner(x) + self.time(time.view(1, 1)).view(1, -1, 1, 1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(functional.silu(norm(x)))
        out: Tensor = self.outer(x)
        return out


def diffusion_sampling(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Sample images by 40 denoising steps whose coefficients are looked up on the host.

    Repaired: one denoising step as a CUDA graph that counts the time itself, on the GPU.
    """
    number, size = (40, 32) if device == "cuda" else (3, 8)
    model = _Denoiser(64).to(device).eval()
    noise = torch.linspace(1e-4, 0.02, number, device=device)
    kept = torch.cumprod(1 - noise, 0)
    image = torch.empty(4, 3, size, size, device=device)
    time = torch.zeros(1, dtype=torch.long, device=device)

    @torch.no_grad()
    def looked_up(x: Tensor, moment: int) -> Tensor:
        guess = model(x, torch.tensor(moment / number, device=device))
        scale = noise[moment].item() / math.sqrt(1 - kept[moment].item())
        x = (x - scale * guess) / math.sqrt(1 - noise[moment].item())
        return x + math.sqrt(noise[moment].item()) * torch.randn_like(x) if moment else x

    @torch.no_grad()
    def on_gpu() -> None:
        guess = model(image, time / number)
        now = noise[time]
        x = (image - now / torch.sqrt(1 - kept[time]) * guess) / torch.sqrt(1 - now)
        image.copy_(x + torch.sqrt(now) * (time > 0) * torch.randn_like(x))
        time.sub_(1)

    denoise = graphed(on_gpu, device) if repaired else None

    def step(index: int) -> Tensor:  # noqa: ARG001
        image.normal_()
        if denoise is not None:
            time.fill_(number - 1)
            for _ in range(number):
                denoise()
            return image
        x: Any = image
        for moment in reversed(range(number)):
            x = looked_up(x, moment)
        return torch.as_tensor(x)

    return step
