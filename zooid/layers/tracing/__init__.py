"""From a model's forward to a flat program of operations with places to cut."""
