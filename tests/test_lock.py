"""Development and CI install what the lock files list by hash, and nothing else."""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest
from packaging.markers import default_environment
from packaging.utils import canonicalize_name

from tests.locked import LOCKS, Pin, declared, needed_by, pins
from tests.shared import REPOSITORY

FILES = ("run.txt", "dev.txt", "torch.txt", "torch-cpu.txt")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}


def _environment(python: str, system: str) -> dict[str, str]:
    machine = "arm64" if system == "darwin" else "x86_64"
    return {
        **{key: str(value) for key, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": system,
        "platform_system": SYSTEMS[system],
        "platform_machine": machine,
    }


@pytest.mark.parametrize("name", FILES)
def test_every_package_has_a_version_and_hashes(name: str) -> None:
    pinned = pins(name)  # raises on indexes, addresses and paths
    assert pinned
    assert [pin.name for pin in pinned if not pin.hashes] == []


def test_there_are_no_other_lock_files() -> None:
    assert {path.name for path in LOCKS.iterdir()} == set(FILES)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_everything_declared_is_locked_within_its_range(python: str, system: str) -> None:
    environment = _environment(python, system)
    run, everything = pins("run.txt"), [*pins("run.txt"), *pins("dev.txt"), *pins("torch.txt")]
    for locked, requirements in ((run, declared()), (everything, declared("dev"))):
        for requirement in requirements:
            if requirement.marker is not None and not requirement.marker.evaluate(environment):
                continue
            name = canonicalize_name(requirement.name)
            (pin,) = (p for p in locked if p.name == name and p.applies(environment))
            assert pin.version in requirement.specifier, f"{requirement}: {pin.version}"


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_locked_twice(python: str, system: str) -> None:
    environment = _environment(python, system)
    everything = [*pins("run.txt"), *pins("dev.txt"), *pins("torch.txt")]
    names = [pin.name for pin in everything if pin.applies(environment)]
    assert sorted(names) == sorted(set(names))


def _missing(locked: list[Pin], installed: list[Pin]) -> set[str]:
    """Give what installed packages need that is not locked."""
    environment = {key: str(value) for key, value in default_environment().items()}
    names = {pin.name for pin in locked if pin.applies(environment)}
    missing = set()
    for name in {pin.name for pin in installed if pin.applies(environment)}:
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of an environment that is older than the lock
        missing |= {f"{name} needs {n}" for n in needed_by(requires, environment) - names}
    return missing


def test_the_lock_is_complete() -> None:
    """It is installed without looking at dependencies."""
    run, dev = pins("run.txt"), pins("dev.txt")
    assert _missing(run, run) == set()
    assert _missing([*run, *dev, *pins("torch.txt")], dev) == set()


def test_the_cpu_build_of_torch_is_the_same_version_and_brings_no_cuda() -> None:
    (cpu,) = pins("torch-cpu.txt")
    (torch,) = (pin for pin in pins("torch.txt") if pin.name == "torch")
    assert (cpu.name, str(cpu.version)) == ("torch", f"{torch.version}+cpu")
    heavy = re.compile(r"torch$|triton|cuda-toolkit|nvidia-cu(blas|dnn|fft|sparse|solver)")
    assert [pin.name for pin in pins("dev.txt") if heavy.match(pin.name)] == []


def test_ncu_report_is_never_installed() -> None:
    """Reports are read without NVIDIA's own module; its licence does not fit ours."""
    for name in FILES:
        assert "ncu-report" not in {pin.name for pin in pins(name)}
    wanted = [*declared(), *declared("dev"), *declared("pictures")]
    assert "ncu-report" not in {canonicalize_name(each.name) for each in wanted}


def test_setup_installs_by_hash_only() -> None:
    script = (REPOSITORY / "scripts" / "setup").read_text()
    installs = re.findall(r"pip install (.*)", script)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert installs[1] == "--no-deps --no-build-isolation -e ."


def test_the_front_end_is_locked_by_hash() -> None:
    lock = json.loads((REPOSITORY / "frontend" / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages
    for name, entry in packages.items():
        assert entry["integrity"].startswith("sha512-"), name
        assert "resolved" not in entry, f"{name} names a registry"
    assert "npm ci" in (REPOSITORY / "scripts" / "frontend").read_text()
