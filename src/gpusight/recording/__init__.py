"""Makes captures: runs programs under profilers, and marks what happens inside them.

Knows no analysis and reads no capture. What runs inside the profiled program, `inside/`, imports
the standard library only: it is also loaded into programs without gpusight's dependencies.
"""
