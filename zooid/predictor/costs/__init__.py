"""The bill of a run, from the traffic of a step to dollars."""
