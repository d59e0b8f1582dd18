"""HolisticTraceAnalysis on the traces of all ranks; run by the Python that has it.

python benchmarks/hta_ranks.py FOLDER
"""

from __future__ import annotations

import sys
import warnings

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]


def main() -> None:
    """Print where the time of each rank goes, and how much communication is overlapped."""
    warnings.simplefilter("ignore")
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    print(analysis.get_temporal_breakdown(visualize=False).to_csv(index=False))
    print(analysis.get_comm_comp_overlap(visualize=False).to_csv(index=False))
    print(analysis.get_potential_stragglers())


if __name__ == "__main__":
    main()
