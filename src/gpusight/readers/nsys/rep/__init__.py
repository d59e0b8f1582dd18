"""Native Nsight Systems reports (`.nsys-rep`, `.qdrep`), decoded without NVIDIA software."""
