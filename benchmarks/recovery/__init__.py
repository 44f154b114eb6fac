"""How long a run stands still after a loss, beside torchrun's restart: `python -m benchmarks.recovery`."""
