"""Everything that happens in a step, as data and pure rules without torch, I/O or a clock.

Each member has one list of actions, which is simulated, rehearsed and executed.
"""
