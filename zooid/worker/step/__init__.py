"""One step of one member: its actions, the vote on it, and its apply or drop."""
