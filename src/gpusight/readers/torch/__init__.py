"""PyTorch: traces of torch.profiler, memory snapshots and printed tables."""
