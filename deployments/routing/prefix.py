"""Where prompts with the same beginning went: chained hashes of fixed chunks, and who has seen them."""

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable

CHUNK_BYTES = 512
"""About 130 tokens of English. Engines with mamba layers reuse in steps of several hundred: finer is no better."""

MOST_CHUNKS = 64
"""32 KiB of a prompt are looked at: what differs later has long decided where the prompt goes."""

MOST_HOLDERS = 4
"""Replicas remembered for one beginning, the newest first."""


def chained_hashes(parts: Iterable[str | bytes | int], seed: str = "") -> tuple[int, ...]:
    """One hash for each whole chunk of a prompt's beginning; each covers all bytes before it too.

    Two prompts share their first n hashes exactly if they share their first n * CHUNK_BYTES bytes (but for a chance of
    2^-64) and their seeds. `parts` are taken as one text, and no further than MOST_CHUNKS or the first that is a number
    (of tokens whose text is not known).
    """
    wanted = CHUNK_BYTES * MOST_CHUNKS
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        if isinstance(part, int):
            break
        data = part[: wanted - size].encode(errors="replace") if isinstance(part, str) else part
        gathered.append(data)
        size += len(data)
        if size >= wanted:
            break
    text = b"".join(gathered)
    if len(text) < CHUNK_BYTES:
        return ()
    running = hashlib.blake2b(seed.encode(), digest_size=8)
    hashes = []
    for end in range(CHUNK_BYTES, min(len(text), wanted) + 1, CHUNK_BYTES):
        running.update(text[end - CHUNK_BYTES : end])
        hashes.append(int.from_bytes(running.digest()))
    return tuple(hashes)


class PrefixIndex:
    """Beginning -> the replicas that have served it; the least recently used beginnings are forgotten."""

    def __init__(self, most: int = 65_536) -> None:
        """`most` beginnings are kept, about 200 bytes each."""
        self._most = most
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, hashes: tuple[int, ...], among: Container[str]) -> tuple[str, ...]:
        """Replicas of `among` that have seen the longest beginning that any of them has seen; () if none has."""
        for chunk in reversed(hashes):
            found = tuple(replica for replica in self._holders.get(chunk, ()) if replica in among)
            if found:
                return found
        return ()

    def record(self, hashes: tuple[int, ...], replica_id: str) -> None:
        """The replica is about to serve this beginning."""
        for chunk in hashes:
            others = tuple(other for other in self._holders.get(chunk, ()) if other != replica_id)
            self._holders[chunk] = (replica_id, *others[: MOST_HOLDERS - 1])
            self._holders.move_to_end(chunk)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def forget(self, replica_id: str) -> None:
        """The replica has seen nothing: it runs another engine. Looks at every beginning."""
        for chunk, holders in list(self._holders.items()):
            if replica_id in holders:
                others = tuple(other for other in holders if other != replica_id)
                if others:
                    self._holders[chunk] = others
                else:
                    del self._holders[chunk]

    def check_integrity(self) -> None:
        """Raises AssertionError if the index outgrew its bound or holds a replica twice."""
        assert len(self._holders) <= self._most, f"{len(self._holders)} beginnings, at most {self._most} allowed"
        for holders in self._holders.values():
            assert 0 < len(holders) <= MOST_HOLDERS and len(set(holders)) == len(holders), holders
