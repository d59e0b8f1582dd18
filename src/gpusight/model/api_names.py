"""Names of API calls, apart from those of kernels: every capture that is opened needs them."""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"(?:_(?:ptsz|ptds))?(?:_v\d{1,6})?(?:_(?:ptsz|ptds))?$")


def strip_api_version(name: str) -> str:
    """Drop the version and stream suffixes of an API call: `cuMemAlloc_v2` is `cuMemAlloc`."""
    return _SUFFIX.sub("", name, count=1) or name
