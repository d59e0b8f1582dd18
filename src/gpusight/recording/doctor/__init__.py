"""What this machine can record with, and what to do about what is missing."""
