"""Stacks of host threads: our own, folded lines and speedscope's JSON."""
