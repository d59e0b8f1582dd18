"""nsys_stats."""
