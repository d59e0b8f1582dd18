"""What a report says of a capture: every answer that it shows, gathered once."""
