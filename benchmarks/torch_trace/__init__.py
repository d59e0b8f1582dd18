"""A make-believe training run, to write PyTorch traces of any size from."""
