"""`python -m zooid.store.shards URL FOLDER MAX_BYTES`: fetch shards for the process that started this one."""

import sys

from zooid.store.shards.fetcher import serve

serve(*sys.argv[1:4])
