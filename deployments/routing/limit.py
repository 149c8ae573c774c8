"""How many requests a replica is given at once: one rule for Ray Serve's bound, the board and autoscaling."""

from math import ceil

WITHOUT_KV = 8
"""Places of a replica that requests with KV leave free, for those that hold none: /v1/models, /tokenize, ..."""


def default_limit(max_num_seqs: int) -> int:
    """Requests that Ray Serve lets a replica hold at once, unless the configuration says so.

    max_num_seqs, a quarter more that wait inside the engine (requests of other ways in, and those whose reservations
    overlap), and `WITHOUT_KV`. KV memory is no part of it: the board counts that request by request. With max_num_seqs
    16 it is 16 + 4 + 8 = 28.
    """
    return max_num_seqs + ceil(max_num_seqs / 4) + WITHOUT_KV


def most_sequences(max_num_seqs: int, limit: int) -> int:
    """Sequences with KV that a replica is given at once; at least 1.

    Args:
        limit: requests that Ray Serve lets it hold at once. With max_num_seqs 16, a limit of 28 leaves 16, one of 12
            leaves 4, and one of 8 or less leaves 1.
    """
    return max(1, min(max_num_seqs, limit - WITHOUT_KV))
