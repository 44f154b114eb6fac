"""Members that sleep instead of computing. Their steps, votes and rosters are those of members that train."""
