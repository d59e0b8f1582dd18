from __future__ import annotations

from pathlib import Path

import gpusight
from tests.shared import DATA

SOURCE = Path(gpusight.__file__).parent
NAMED = {
    "demo": SOURCE / "data" / "demo.sqlite",
    "graph": DATA / "graph.sqlite",
    "forward": DATA / "gpt_small_forward.sqlite",
}
