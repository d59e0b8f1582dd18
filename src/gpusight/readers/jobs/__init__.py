"""Traces of whole jobs: one table of operations by step and worker."""
