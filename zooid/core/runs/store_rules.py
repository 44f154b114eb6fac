"""Sizes and intervals by which the programs of a run use its store.

The programs follow these rules, and the prediction counts requests and bytes by them, so both import them from here.
"""

import math
import struct

TRAILER = struct.Struct("<4sIqQd")
"""The trailer after every message in a store: magic bytes, checksum, watermark, and number of bytes."""
TRAILER_BYTES = TRAILER.size

SINGLE_PUT_BYTES = 32 * 2**20
"""An object up to this size is put in one request, which costs least. A larger one is put in several parts at once."""
PART_BYTES = 8 * 2**20

EVENT_LOOK_S = 1.0
"""How often a coordinator looks for events in a remote store: one listing, and one get for each writer."""
EVENT_FLUSH_S = 0.3
"""The longest pause between two writes of a member's events. Short enough for a progress bar; a writer that never
pauses makes 288,000 puts a day, $1.44 on S3."""
LEASE_HEARTBEAT_S = 3.0
"""How often a coordinator renews its lease and looks for a newer claim: 28,800 puts a day, 14 cents on S3, and as many
gets, 1 cent."""
FENCE_LOOK_S = 2.0
"""How often a member looks for a newer claim: 43,200 gets a day, 2 cents on S3. The first member then also looks for a
request to stop, with as many gets."""
FENCE_FRESH_S = 1.0
"""How long the result of such a look stays valid."""
CHANGE_LOOK_S = 1.0
"""How often the first member looks for a planned change of its roster: 86,400 gets a day, 3 cents on S3. Successors are
paid until it is found."""
INVITATION_LOOK_S = 0.4
"""How often a process that waits to join looks for a seat in a planned change. It is invited soon, and both it and the
members are paid until it has come."""
SEAT_LOOK_S = 0.2
"""How often a process that has connected looks for the roster whose guest it is, which comes within a few steps."""
REQUEST_LOOK_S = 2.0
"""How often a coordinator lists what people and members ask for: 43,200 lists a day, 22 cents on S3."""
_FREE_LOOK_FACTOR = 0.05
"""Looks are this much closer together in a folder of this machine, which charges nothing."""
DELETE_AFTER_S = 2.0
"""The longest time that an unneeded message stays in the store."""
USAGE_REPORT_S = 10.0
"""How often a member that has nothing else to tell reports its use of the store: 8,640 puts a day, 4 cents on S3."""
LISTED_PER_PAGE = 1000
"""Number of keys in one page of a listing. Each page is a request."""


def look_s(url: str, charged_s: float) -> float:
    """Seconds between two looks in the store of this URL, given those for a store that charges for each.

    >>> look_s("s3://bucket/run", 2.0), look_s("file:///tmp/run", 2.0)
    (2.0, 0.1)
    """
    return charged_s * _FREE_LOOK_FACTOR if url.startswith("file://") else charged_s


def put_requests(num_bytes: float) -> int:
    """Number of requests that put an object of this size: one, or one for each part and two around them.

    >>> put_requests(32 * 2**20), put_requests(32 * 2**20 + 1)
    (1, 7)
    """
    return 1 if num_bytes <= SINGLE_PUT_BYTES else 2 + math.ceil(num_bytes / PART_BYTES)
