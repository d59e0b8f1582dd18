"""Pure functions from a Trace to a frozen result."""
