"""Gradients of a stage, from the last backward to their sum over all replicas."""
