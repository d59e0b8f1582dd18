"""Programs with a known defect, each as found and repaired, and healthy ones.

    python -m benchmarks.programs NAME --variant found --steps 30

They are written as people write them: no NVTX ranges, no marks for a profiler. `registry.py` lists
them, `collect.py` times and captures them on a machine with a GPU (`--list` says how long that
takes), `score.py` diagnoses the captures and `accuracy.py` sums up how right the diagnoses are
(`docs/accuracy.md`). `step_times_h200.json` and `accuracy_h200.json` hold one collection.

In half an hour of a leased GPU, in calls of ten minutes each, from the root of the repository, with
nsys on the PATH and a neutral environment (see `collect`):

    python -m benchmarks.programs.collect --missing --minutes 8.5 --out "$OUT"
    python -m benchmarks.record_options --tools cupti,torch --minutes 6 --out "$OUT"
    python -m benchmarks.programs.collect --missing --minutes 8.5 --out "$OUT"

Between two calls of `collect`, score what came back (the commands are in its docstring): the next
one goes on with what is still missing. The last step is `accuracy times`, `accuracy table` and
`python -m tools.generate_docs`.
"""
