"""`python -m zooid.store.shards URL FOLDER MAX_BYTES LOG`: the program of a fetcher of shards."""

import sys

from zooid.store.shards.fetcher import serve

serve(*sys.argv[1:5])
