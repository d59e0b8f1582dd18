"""Hardware counters of profiled launches: what was measured, under names that outlive versions."""
