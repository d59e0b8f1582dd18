"""occupancy."""
