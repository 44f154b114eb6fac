"""Money: the traffic of a step, what a run uses of the store and the links, and the bill."""
