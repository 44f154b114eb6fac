"""What happens in a step, as data and pure rules.

One list of actions per member is timed by the simulator, rehearsed and executed; nothing about a schedule exists
anywhere else. No torch, no I/O, no clock.
"""
