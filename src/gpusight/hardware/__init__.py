"""What GPUs can do: the GPU table, SM limits, occupancy, peak rates."""
