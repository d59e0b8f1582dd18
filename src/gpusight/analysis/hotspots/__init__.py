"""GPU and host time by the stack of the program: lines, functions, flame graphs."""
