"""The verdict of a gate as text, Markdown, JUnit XML or JSON."""
