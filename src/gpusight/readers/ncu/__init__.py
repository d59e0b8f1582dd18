"""Nsight Compute: native reports and what it prints."""
