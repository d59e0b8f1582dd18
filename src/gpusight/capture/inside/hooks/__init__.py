"""Listens in on what a program's libraries do, and tells the hub of steps and ranges."""
