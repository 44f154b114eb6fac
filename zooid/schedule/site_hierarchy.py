"""All-reduce over several sites: sum inside each site, exchange sums between sites, and spread the result inside."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zooid.schedule.transfer_lists import Span, Transfer, TransferList, chunks_of, spans


def hierarchical(num_elements: int, sites: Sequence[Hashable], num_chunks: int = 1) -> TransferList:
    """All-reduce over sites that are far from one another; `sites` has the site of each rank.

    In every site, each member owns a part and adds it up. The owners of the same part send their sums to one of them,
    for each part in another site, which publishes the total; the others spread it inside their sites. Each of G sites
    sends 2s(G−1)/G bytes, the least possible, over as many connections as it has members. No member moves more than
    2s(N−1)/N, as without sites. A rank adds up any element only once, so its sums need no order.
    """
    crews: dict[Hashable, list[int]] = {}
    for rank, site in enumerate(sites):
        crews.setdefault(site, []).append(rank)
    owned = _owned_parts(num_elements, list(crews.values()), num_chunks) if len(sites) > 1 else []
    transfers: list[Transfer] = []
    for parts in owned:
        _add_hierarchical(transfers, parts, list(crews.values()))
    return tuple(transfers)


@dataclass(frozen=True, slots=True)
class _OwnedPart:
    """A span, the member of each site that adds it up, and the site that adds up these sums."""

    span: Span
    owners: tuple[int, ...]
    home: int


def _owned_parts(num_elements: int, crews: list[list[int]], num_chunks: int) -> list[list[_OwnedPart]]:
    """The parts of each chunk. Sites of different size cut the buffer differently; a part lies between two cuts."""
    starts = [[start for start, _ in spans(num_elements, len(crew))] for crew in crews]
    cuts = sorted({0, num_elements}.union(*starts))
    chunks: list[list[_OwnedPart]] = [[] for _ in range(num_chunks)]
    for piece in pairwise(cuts):
        owners = tuple(
            crew[bisect_right(crew_starts, piece[0]) - 1] for crew, crew_starts in zip(crews, starts, strict=True)
        )
        for parts, chunk in zip(chunks, chunks_of(piece, [1] * num_chunks), strict=True):
            pieces = chunks_of(chunk, [1] * len(crews))
            parts += [_OwnedPart(span, owners, home) for home, span in enumerate(pieces) if span[0] < span[1]]
    return chunks


def _add_hierarchical(transfers: list[Transfer], parts: list[_OwnedPart], crews: list[list[int]]) -> None:
    """Append the transfers of one chunk: parts to owners inside, sums of sites to their homes, and back."""
    arriving: defaultdict[tuple[_OwnedPart, int], list[int]] = defaultdict(list)
    for distance in range(1, max(map(len, crews))):  # distance by distance, so that no reader gets all at once
        for part in parts:
            for crew, owner in zip(crews, part.owners, strict=True):
                if distance < len(crew):
                    arriving[part, owner].append(len(transfers))
                    source = _others_of(crew, owner)[-distance]
                    transfers.append(Transfer(source, (owner,), *part.span, "reduce"))
    for distance in range(1, len(crews)):
        for part in parts:
            source, reader = part.owners[(part.home - distance) % len(crews)], part.owners[part.home]
            arriving[part, reader].append(len(transfers))
            transfers.append(Transfer(source, (reader,), *part.span, "reduce", tuple(arriving[part, source])))
    for part in parts:
        source = part.owners[part.home]
        other_sites = [(part.home + distance) % len(crews) for distance in range(1, len(crews))]
        readers = (*(part.owners[site] for site in other_sites), *_others_of(crews[part.home], source))
        total = len(transfers)
        transfers.append(Transfer(source, readers, *part.span, "copy", tuple(arriving[part, source])))
        for site in other_sites:
            others = _others_of(crews[site], part.owners[site])
            if others:
                transfers.append(Transfer(part.owners[site], others, *part.span, "copy", (total,)))


def _others_of(crew: list[int], rank: int) -> tuple[int, ...]:
    """The other ranks of a site, beginning with the next one."""
    index = crew.index(rank)
    return (*crew[index + 1 :], *crew[:index])
