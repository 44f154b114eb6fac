"""The user's job, and the checks of its file that need no run."""
