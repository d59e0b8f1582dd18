"""Where the time of a window went, every nanosecond in one entry."""
