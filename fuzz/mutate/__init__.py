"""Mutations by family of formats. Each takes a `random.Random` and a valid input."""
