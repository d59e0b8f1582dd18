"""From a trace to its kernel table with HolisticTraceAnalysis; run by the Python that has it.

python benchmarks/hta_kernels.py TRACE [--ijson]
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from hta.common.trace_parser import (  # type: ignore[import-not-found]
    set_default_trace_parsing_backend,
)
from hta.configs.parser_config import ParserBackend  # type: ignore[import-not-found]
from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]


def main() -> None:
    """Load the trace as rank 0 and print the kernels by the time they took."""
    warnings.simplefilter("ignore")
    if "--ijson" in sys.argv:
        set_default_trace_parsing_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
    trace = str(Path(sys.argv[1]).resolve())
    _, kernels = TraceAnalysis(trace_files={0: trace}).get_gpu_kernel_breakdown(visualize=False)
    print(kernels.to_csv(index=False))


if __name__ == "__main__":
    main()
