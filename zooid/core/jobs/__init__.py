"""The job that a user hands over, and what its file tells before it is run."""
