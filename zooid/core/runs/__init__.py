"""Records that a run writes and reads: rosters, events, checkpoints, timelines and their keys."""
