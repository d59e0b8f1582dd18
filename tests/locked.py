"""The lock files in requirements/, and the dependencies that pyproject.toml declares."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.shared import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCKS = REPOSITORY / "requirements"
_PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ; (?P<marker>.+?))?(?: \\)?")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")


@dataclass(frozen=True)
class Pin:
    """One version of a package, where its marker applies."""

    name: str
    version: Version
    marker: Marker | None
    hashes: int

    def applies(self, environment: dict[str, str]) -> bool:
        """Tell whether a machine installs it."""
        return self.marker is None or self.marker.evaluate(environment)


def pins(name: str) -> list[Pin]:
    """Read a lock file; a line that is no pin, hash, comment or `-r run.txt` is an error."""
    result: list[Pin] = []
    for line in (LOCKS / name).read_text().splitlines():
        if line.startswith("#") or line == "-r run.txt":
            continue
        if _HASH.fullmatch(line):
            last = result.pop()
            result.append(Pin(last.name, last.version, last.marker, last.hashes + 1))
            continue
        match = _PIN.fullmatch(line)
        assert match, f"{name}: {line}"
        marker = Marker(match["marker"]) if match["marker"] else None
        result.append(Pin(match["name"], Version(match["version"]), marker, 0))
    return result


def declared(extra: str = "") -> list[Requirement]:
    """Give what pyproject.toml says that gpusight needs, or its extra."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(line) for line in lines]


def needed_by(requirements: list[str], environment: dict[str, str]) -> set[str]:
    """Give the packages that requirements name in an environment, without their extras."""
    parsed = map(Requirement, requirements)
    return {
        canonicalize_name(each.name)
        for each in parsed
        if each.marker is None or each.marker.evaluate({**environment, "extra": ""})
    }
