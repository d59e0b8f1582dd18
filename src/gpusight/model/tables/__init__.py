"""The declarations of the tables, by what they are about."""
