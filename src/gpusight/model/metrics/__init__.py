"""What Nsight Compute calls its metrics, and the units that they are in."""
