"""The simulator: it runs the members' own action lists on a simulated clock and network."""
