"""What names mean: C++ demangling, kernel families and precisions, metrics of Nsight Compute."""
