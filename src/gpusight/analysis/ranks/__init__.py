"""All ranks of a job: their collectives, who is late, why, and what it costs."""
