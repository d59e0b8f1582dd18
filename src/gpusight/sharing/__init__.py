"""Sanitized copies of captures for sharing.

Without what identifies the machine, its users and their data.
"""
