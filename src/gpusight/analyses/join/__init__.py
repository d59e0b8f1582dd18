"""The kernels of a timeline with the hardware counters of a report of the same program."""
