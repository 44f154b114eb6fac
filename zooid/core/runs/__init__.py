"""Records that a run writes and reads, such as rosters, events, checkpoints and timelines, and their keys."""
