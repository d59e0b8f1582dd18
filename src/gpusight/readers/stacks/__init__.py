"""Readers of stacks of host threads."""
