from __future__ import annotations

from pathlib import Path

import gpusight

SOURCE = Path(gpusight.__file__).parent
DATA = Path(__file__).parents[1] / "data"
NAMED = {
    "demo": SOURCE / "data" / "demo.sqlite",
    "graph": DATA / "graph.sqlite",
    "forward": DATA / "gpt_small_forward.sqlite",
}
