"""Sandboxes as rented serverless platforms give them: one program in each, started while others run."""
