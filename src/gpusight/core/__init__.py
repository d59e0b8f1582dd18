"""The loops that decide speed, as plain C on NumPy buffers; NumPy does the same without them."""
