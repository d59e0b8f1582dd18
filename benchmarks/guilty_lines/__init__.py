"""Programs that wait for one line each, and whether `gpusight hotspots` names it first."""
