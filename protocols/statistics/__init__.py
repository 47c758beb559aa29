"""Statistics of few seeds: intervals, paired tests, ranks, verdicts, bootstrap, and the seeds that a result needs.

Pure functions of NumPy arrays, SciPy underneath. docs/protocol.md says how often their intervals contain the truth.
"""
