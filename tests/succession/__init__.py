"""Members that vanish in every order, against the rules of steps and rosters: `python -m tests.succession`."""
