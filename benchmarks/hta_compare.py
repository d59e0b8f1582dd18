"""Two traces compared by HolisticTraceAnalysis; run by the Python that has it.

python benchmarks/hta_compare.py BEFORE AFTER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from hta.common.trace import Trace  # type: ignore[import-not-found]
from hta.trace_diff import LabeledTrace, TraceDiff  # type: ignore[import-not-found]


def main() -> None:
    """Print what operators and kernels took in either trace."""
    warnings.simplefilter("ignore")
    sides = [Trace(trace_files={0: str(Path(path).resolve())}) for path in sys.argv[1:]]
    before, after = (
        LabeledTrace(label, t=one) for label, one in zip(("before", "after"), sides, strict=True)
    )
    print(TraceDiff.compare_traces(before, after).to_csv())


if __name__ == "__main__":
    main()
