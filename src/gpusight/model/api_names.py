"""Names of API calls, apart from those of kernels: every capture that is opened needs them."""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"(?:_(?:ptsz|ptds|spt)|R\d{4})?(?:_v\d{1,6})?(?:_(?:ptsz|ptds))?$")


def strip_api_version(name: str) -> str:
    """Drop version and stream suffixes of an API call, CUDA's (`cuMemAlloc_v2`) and HIP's."""
    return _SUFFIX.sub("", name, count=1) or name
