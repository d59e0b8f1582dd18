"""Programs with a known defect, each as found and repaired, and healthy ones.

    python -m benchmarks.programs NAME --variant found --steps 30

They are written as people write them: no NVTX ranges, no marks for a profiler. `registry.py` lists
them, `collect.py` times and captures them on a machine with a GPU (`--list` says how long that
takes), `score.py` diagnoses the captures and `accuracy.py` sums up how right the diagnoses are
(`docs/accuracy.md`). `step_times_h200.json` and `accuracy_h200.json` hold one collection.
"""
