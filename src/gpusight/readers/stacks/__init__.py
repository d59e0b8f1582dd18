"""Stacks of other profilers (folded lines, speedscope) and those that `gpusight record` sampled."""
