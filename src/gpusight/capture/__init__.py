"""Makes captures: runs programs under profilers, and marks what happens inside them.

Knows no analysis and reads no capture. What runs inside the profiled program, `inside/` and the
functions that people call from their own code, imports the standard library only: it is also
loaded into programs whose environment has none of gpusight's dependencies.
"""
