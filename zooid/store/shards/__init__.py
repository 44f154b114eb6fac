"""Tar shards in a bucket as a map-style data set: webdataset's files, read by index through a cache on this machine.

`shards` is the data set; `index_shards` counts the samples of a folder of shards, which has to be done once.
"""

from zooid.store.shards.dataset import ShardedData, shards
from zooid.store.shards.index import index_shards

__all__ = ["ShardedData", "index_shards", "shards"]
