"""`gpusight mcp`: captures for coding agents, over the Model Context Protocol."""
