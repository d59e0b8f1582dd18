"""Programs that wait for one line each, and whether `gpusight hotspots` names it first."""

from pathlib import Path

RESULTS = Path(__file__).with_name("guilty_lines.json")
"""The last results of `python -m benchmarks.guilty_lines.score`."""
