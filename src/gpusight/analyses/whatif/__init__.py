"""What a program would take if something were different: what is asked, and what comes out."""

from gpusight.analyses.whatif.report import WhatIf, replayed
from gpusight.analyses.whatif.wish import Wish, read_wish, wishes

__all__ = ["WhatIf", "Wish", "read_wish", "replayed", "wishes"]
