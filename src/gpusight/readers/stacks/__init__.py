"""Stacks that other profilers wrote: folded lines and speedscope's JSON."""
