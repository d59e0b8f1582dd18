"""From a GPU profile to what to fix, ranked by the time it gives back."""
