"""The interactive side: a server on this machine alone, and the pages that it serves."""
