"""`python -m zooid.store.shards URL FOLDER MAX_BYTES`: the program of a fetcher of shards."""

import sys

from zooid.store.shards.fetcher import serve

serve(*sys.argv[1:4])
