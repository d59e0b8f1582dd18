"""A comparison as text, Markdown, HTML, CSV or a picture."""
