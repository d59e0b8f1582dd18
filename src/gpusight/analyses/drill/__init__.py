"""From a timeline to counters: which kernels to measure, and how Nsight Compute hits them."""
