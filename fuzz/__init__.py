"""Fuzzing of everything that gpusight reads: `scripts/fuzz --minutes N`.

corpus/   smallest captures per format and version, and every input that once failed
mutate/   structure-aware mutations, one module per family of formats
formats   the formats: seeds, mutation, what reads them
check     what must hold for every input
run       engine: workers, time and memory limits, counts by format
coverage  coverage-guided targets for the parsers (atheris)
"""
