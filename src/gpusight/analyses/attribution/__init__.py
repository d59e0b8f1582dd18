"""Which call, operator, module, range and line of code caused each piece of GPU work."""
