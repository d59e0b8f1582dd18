"""What runs inside the recorded program, or in one that calls gpusight: standard library only."""
