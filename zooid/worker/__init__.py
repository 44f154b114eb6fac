"""One member: it builds its stage, runs its actions, commits its steps and saves its state.

A platform starts it as `python -m zooid.worker SPEC`. The packages that decide never import it.
"""
