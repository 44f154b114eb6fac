"""Traces as records: what a member needs in order to build stages without the model's code and without a compiler."""
