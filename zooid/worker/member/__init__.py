"""The life of one member: its tasks, its seat in the roster, and the training loop."""
