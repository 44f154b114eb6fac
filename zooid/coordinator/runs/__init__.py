"""Training runs: started, supervised, resumed, adopted and cleaned up."""
