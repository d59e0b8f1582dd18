"""Before and after: what changed between captures of a program, by how much, and why."""
