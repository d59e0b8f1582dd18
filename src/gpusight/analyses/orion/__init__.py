"""The kernel-info file of the Orion GPU scheduler: building it, checking it, and its plots.

`build` makes it from a report of hardware counters, `check` reads a file as the scheduler does, and
`utilisation` lays what was measured over a timeline. `docs/orion.md` says what each column is.
"""
