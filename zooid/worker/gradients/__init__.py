"""The gradients of a stage, from the backwards of a step to its apply.

1. Backwards fill the parameters' gradients, and `BucketGradients` or `TreeGradients` copies them into buckets.
2. The same object sums each bucket over the replicas, while the last backward still runs.
3. `TiedSum` sums the gradients of parameters that several stages share.
4. `TrainingState` holds the sums until all members have voted, and then applies or drops them.
"""
