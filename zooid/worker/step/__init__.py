"""One step of one member: its actions, its votes, and whether it is applied."""
