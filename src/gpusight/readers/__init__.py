"""From a file to a Trace. Vendor schemas and versions stop here."""

from __future__ import annotations

from gpusight.readers.open import open_trace

__all__ = ["open_trace"]
