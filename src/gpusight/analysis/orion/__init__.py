"""orion."""
