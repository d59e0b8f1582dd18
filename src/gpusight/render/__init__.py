"""Results to text or bytes: nothing here opens a capture or computes a number."""
