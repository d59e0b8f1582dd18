"""What the package carries was built from the sources in frontend/."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests.shared import REPOSITORY

SOURCES = REPOSITORY / "frontend" / "src"
PACKAGE = REPOSITORY / "src" / "gpusight"
BUILT = (
    "web/static/timeline.js",
    "web/static/timeline.css",
    "render/html/assets/report.js",
    "render/html/assets/report.css",
)


def digest_of_sources() -> str:
    """Compute what frontend/build.mjs writes into each file that it builds."""
    digest = hashlib.sha256()
    paths = [path for path in SOURCES.rglob("*") if path.is_file()]
    for name, path in sorted((path.relative_to(SOURCES).as_posix(), path) for path in paths):
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@pytest.mark.parametrize("name", BUILT)
def test_is_built_from_the_sources_that_are_there(name: str) -> None:
    text = (PACKAGE / name).read_text(encoding="utf-8")
    match = re.search(r"sources sha256:([0-9a-f]{64})", text)
    assert match is not None
    assert match[1] == digest_of_sources(), "run scripts/frontend"


def test_the_page_is_the_one_of_the_sources() -> None:
    served = PACKAGE / "web" / "static" / "index.html"
    assert served.read_bytes() == (SOURCES / "timeline" / "index.html").read_bytes()
