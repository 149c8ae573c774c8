"""A fleet is answered while its replicas wait, and a book of thousands stays small."""

import pickle
import time
import tracemalloc
from dataclasses import replace

from hybrid_serve.negotiation.book import MAX_ENTRIES, Book
from hybrid_serve.negotiation.offer import ReplicaOffer
from tests.cases import with_settings
from tests.fleets import Clock, fleet_of, offer_of, problem, report_of

SLACK = 4  # for slower and busier machines than the one where the limits were set
NEGOTIATION_SECONDS = 1.5
INTEGRITY_SECONDS = 1.0
BYTES_PER_REPLICA = 30_000

KINDS = {
    f"sm{sm}-tp{size}": replace(with_settings(problem(gib), tensor_parallel_size=size), sm=sm)
    for gib, (sm, size) in enumerate(((s, t) for s in (80, 89, 90, 100) for t in (1, 2)), start=20)
}
FLEET = fleet_of(KINDS)


def offers(count: int) -> list[ReplicaOffer]:
    """Of eight kinds in turn, each with a little other memory, and each a value of its own as from another process."""
    names = list(KINDS)
    made = []
    for number in range(count):
        offer = offer_of(FLEET, names[number % 8], f"r{number}")
        inputs = replace(offer.inputs, kv_memory_bytes=offer.inputs.kv_memory_bytes + number * 4096)
        made.append(replace(offer, inputs=inputs))
    return [pickle.loads(pickle.dumps(offer)) for offer in made]


def test_a_thousand_replicas_of_eight_kinds_are_negotiated_with_within_5_seconds() -> None:
    asked = offers(1000)
    book = Book(Clock())
    started = time.process_time()
    answers = [book.negotiate(offer) for offer in asked]
    assert time.process_time() - started < SLACK * NEGOTIATION_SECONDS
    for offer, answer in zip(asked, answers, strict=True):
        book.record(offer, answer, report_of(answer), "i")
    assert time.process_time() - started < 2 * SLACK * NEGOTIATION_SECONDS
    assert {entry.state for entry in book.entries()} == {"running"} and len(book.entries()) == 1000
    checking = time.process_time()
    book.check_integrity()
    assert time.process_time() - checking < SLACK * INTEGRITY_SECONDS


def test_a_thousand_heartbeats_take_less_than_a_tenth_of_their_period() -> None:
    book = Book(Clock())
    for offer in offers(1000):
        book.record(offer, answer := book.negotiate(offer), report_of(answer), "i")
    started = time.process_time()
    assert all(book.heartbeat(f"r{number}", "i") for number in range(1000))
    assert time.process_time() - started < 0.5


def test_a_book_that_is_full_is_bounded_in_bytes_too() -> None:
    clock = Clock()
    book = Book(clock)
    asked = offers(MAX_ENTRIES + 200)
    tracemalloc.start()
    try:
        for number, offer in enumerate(asked):
            clock.now += 0.001
            answer = book.negotiate(offer)
            book.record(offer, answer, report_of(answer), "i")
            if number == MAX_ENTRIES // 2:
                half = tracemalloc.get_traced_memory()[0]
        full = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(book.entries()) == MAX_ENTRIES and book.forgotten().for_space == 200
    assert full < BYTES_PER_REPLICA * MAX_ENTRIES, f"{full:,} bytes, {half:,} when half full"
