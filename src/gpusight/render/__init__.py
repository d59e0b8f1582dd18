"""From results to text or bytes."""
