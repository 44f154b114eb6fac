"""Traces a model's forward as a flat program of operations, and finds its cut points."""
