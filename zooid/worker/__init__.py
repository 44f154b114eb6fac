"""One member: builds its stage, runs its actions, commits its steps, saves its state.

Started by a platform as `python -m zooid.worker SPEC`, never imported by the rooms that decide.
"""
