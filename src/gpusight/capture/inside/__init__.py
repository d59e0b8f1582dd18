"""What runs inside the program that is recorded. Imports the standard library only."""
