"""Checkpoints as a member sees them: what it reads when it starts, and what it writes beside the training."""
