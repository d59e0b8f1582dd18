"""Rules about single kernels, from hardware counters."""
