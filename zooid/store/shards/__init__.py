"""Tar shards in a bucket as a map-style data set: files of webdataset, read by index through a local cache.

`shards` is the data set; `index_shards` counts the samples of a folder of shards once.
"""

from zooid.store.shards.dataset import ShardedData, shards
from zooid.store.shards.index import index_shards

__all__ = ["ShardedData", "index_shards", "shards"]
