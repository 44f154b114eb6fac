"""A run from its first member to its last checkpoint: started, supervised, resumed, adopted and cleaned up."""
