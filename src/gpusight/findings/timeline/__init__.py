"""What holds a program back, read from its timeline."""
