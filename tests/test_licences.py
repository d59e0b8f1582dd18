"""The licences of dependencies: docs/licences.md lists them, and each one is on a list of ours."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.markers import default_environment
from packaging.utils import canonicalize_name

from tests.locked import declared, needed_by, pins
from tests.shared import REPOSITORY

PERMISSIVE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib",
}  # fmt: skip
"""What a dependency of a user may have."""
FOR_DEVELOPERS = PERMISSIVE | {"MPL-2.0"}
"""What tools may have: they are used, and neither changed nor passed on."""
PROPRIETARY = {"cupti-python", "nvidia-cuda-cupti"}
"""NVIDIA's, on the machines of developers alone: tests compare layouts of records with theirs."""
UNSTATED = {"axe-playwright-python": "MIT AND MPL-2.0"}
"""Packages whose metadata has no licence, by the texts in their files."""
SPELLINGS = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""How metadata writes licences that have an SPDX name."""
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| ([^|]+) \|", re.MULTILINE)


def licence_of(name: str) -> str:
    """Give what the metadata of an installed package says, as an SPDX expression if it can be."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return about["License-Expression"]
    prefix = "License :: OSI Approved :: "
    classified = [each for each in about.get_all("Classifier") or () if each.startswith(prefix)]
    if classified:
        text = classified[0].removeprefix(prefix)
    else:
        text = about["License"] if "License" in about else UNSTATED.get(name, "")
    return SPELLINGS.get(str(text), str(text))


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Tell whether an SPDX expression can be met with these licences: all of AND, one of OR."""
    every = (part.strip(" ()") for part in expression.split(" AND "))
    return all(any(name.strip(" ()") in allowed for name in part.split(" OR ")) for part in every)


def _listed() -> dict[str, str]:
    text = (REPOSITORY / "docs" / "licences.md").read_text()
    return {name: licence.strip() for name, licence in _ROW.findall(text)}


def _installed(names: set[str]) -> list[str]:
    installed = {canonicalize_name(each.name) for each in metadata.distributions()}
    return sorted(names & installed)


def _runtime() -> set[str]:
    """Give what a user gets with gpusight here, by the metadata of what is installed."""
    environment = {key: str(value) for key, value in default_environment().items()}
    names: set[str] = set()
    added = needed_by([str(each) for each in declared()], environment)
    while added:
        names |= added
        requires = [line for name in added for line in metadata.requires(name) or ()]
        added = needed_by(requires, environment) - names
    return names


def test_every_package_that_users_get_is_listed_with_its_licence() -> None:
    listed = _listed()
    assert {pin.name for pin in pins("run.txt")} == set(listed)
    runtime = _runtime()
    assert runtime <= set(listed)
    assert {name: licence_of(name) for name in runtime} == {name: listed[name] for name in runtime}


def test_users_get_permissive_licences_only() -> None:
    listed = _listed()
    assert {n: listed[n] for n in _runtime() if not is_allowed(listed[n], PERMISSIVE)} == {}
    others = {n: each for n, each in listed.items() if not is_allowed(each, FOR_DEVELOPERS)}
    assert others == {}


def test_tools_of_developers_have_licences_that_allow_their_use() -> None:
    tools = {pin.name for pin in (*pins("dev.txt"), *pins("torch-cpu.txt"))} - PROPRIETARY
    licences = {name: licence_of(name) for name in _installed(tools)}
    assert len(licences) > 40
    assert {n: each for n, each in licences.items() if not is_allowed(each, FOR_DEVELOPERS)} == {}


def test_nothing_proprietary_reaches_users() -> None:
    assert not PROPRIETARY & (set(_listed()) | _runtime())


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT AND PSF-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND AGPL-3.0", False),
        ("", False),
        ("a text that nobody has read", False),
    ],
)
def test_unknown_licences_are_refused(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, PERMISSIVE) is allowed
