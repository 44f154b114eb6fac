"""A collective's transfer list in simulated time."""

from collections import defaultdict
from collections.abc import Callable

from zooid.schedule.collectives import DOWNLOADS, UPLOADS, TransferList

Done = Callable[[], None]
Upload = Callable[[int, int, float, Done], None]
"""(rank, one of the readers, bytes, what then)"""
Download = Callable[[int, float, Done], None]


class Collective:
    """A rank sends what it may and takes what is there, from when it joins, round by round."""

    def __init__(
        self, transfers: TransferList, element_bytes: int, upload: Upload, download: Download, is_direct: bool = False
    ) -> None:
        self._transfers = transfers
        self._element_bytes = element_bytes
        self._upload = upload
        self._download = download
        self._is_direct = is_direct
        self._joined: dict[int, Done] = {}
        self._stored: set[int] = set()
        self._taken: defaultdict[int, set[int]] = defaultdict(set)
        self._started: set[tuple[str, int, int]] = set()
        self._active: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        """By direction and rank: sizes of the messages on their way."""
        self._round: dict[int, int] = {}
        self._left: dict[int, list[int]] = {}
        """By rank: sends and takes of each round that are not done."""

    def join(self, rank: int, done: Done) -> None:
        self._joined[rank] = done
        own = [self._send_round(t.send_round) for t in self._transfers if t.source == rank]
        own += [self._send_round(t.take_round) for t in self._transfers if rank in t.readers]
        self._left[rank] = [own.count(number) for number in range(max(own, default=-1) + 1)]
        self._round[rank] = 0
        self._progress(rank)

    def _send_round(self, number: int) -> int:
        """Connected members know no rounds: everything begins as early as it can."""
        return 0 if self._is_direct else number

    def _progress(self, rank: int) -> None:
        left = self._left[rank]
        while self._round[rank] < len(left) and left[self._round[rank]] == 0:
            self._round[rank] += 1
        if self._round[rank] == len(left):
            self._joined.pop(rank, lambda: None)()
            return
        now = self._round[rank]
        for number, transfer in enumerate(self._transfers):
            is_free = self._taken[rank].issuperset(transfer.after)
            if transfer.source == rank and self._send_round(transfer.send_round) == now and is_free:
                self._start("up", rank, number)
            if rank in transfer.readers and self._send_round(transfer.take_round) == now and number in self._stored:
                self._start("down", rank, number)

    def _start(self, direction: str, rank: int, number: int) -> None:
        """Begin a message, unless it has begun or as many as may are on their way."""
        transfer = self._transfers[number]
        size = float(transfer.num_elements * self._element_bytes)
        way = self._active[direction, rank]
        window = UPLOADS if direction == "up" else DOWNLOADS
        if (direction, rank, number) in self._started or not window.admits(len(way), sum(way), size):
            return
        self._started.add((direction, rank, number))
        way.append(size)

        def done() -> None:
            way.remove(size)
            if direction == "up":
                self._stored.add(number)
                self._left[rank][self._send_round(transfer.send_round)] -= 1
                for reader in transfer.readers:
                    if reader in self._joined:
                        self._progress(reader)
            else:
                self._taken[rank].add(number)
                self._left[rank][self._send_round(transfer.take_round)] -= 1
            self._progress(rank)

        if direction == "up":
            # between connected members every reader gets a message of its own
            copies = len(transfer.readers) if self._is_direct else 1
            self._upload(rank, transfer.readers[0], size * copies, done)
        else:
            self._download(rank, size, done)
