"""Rules: from what was measured to what to fix, ranked by the time it gives back."""
