"""What this machine can capture with, and what to do about what is missing."""
