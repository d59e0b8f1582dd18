"""A diagnosis as text, Markdown, HTML, JSON or CSV."""
