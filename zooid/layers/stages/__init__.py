"""Stages: runs of layers as modules that train like the model itself."""
