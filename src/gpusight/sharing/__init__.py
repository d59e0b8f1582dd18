"""Captures to give away: copies without what tells about the machine, its users and their data."""
