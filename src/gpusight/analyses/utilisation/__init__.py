"""How busy each GPU was over time."""

from gpusight.analyses.utilisation.report import BINS, MOST_BINS, utilisation

__all__ = ["BINS", "MOST_BINS", "utilisation"]
