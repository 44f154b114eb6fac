"""Claims of speed as scripts: `python -m benchmarks.NAME` measures both sides in one run.

Each shows a progress bar and a table, and prints as its last line a JSON list of rows (a summary is a row, too);
`--quick` is a short form. `python -m benchmarks` runs them all.
"""
