"""What PyTorch writes beside its traces: memory snapshots and printed tables."""
