"""Reads what Nsight Compute prints: CSV in all its layouts, and the pages as plain text."""
