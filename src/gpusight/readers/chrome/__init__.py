"""Chrome trace files, as torch.profiler and JAX write them."""
