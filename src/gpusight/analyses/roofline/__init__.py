"""How near each kernel came to what its GPU can do: operations against bytes."""

from gpusight.analyses.roofline.report import roofline

__all__ = ["roofline"]
