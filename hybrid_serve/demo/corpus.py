"""The training corpus: an endless, seeded stream of synthetic documents, and prompts that never occur in it.

Every exercise has a key that names its content without its phrasing. A hash of the key puts one exercise in sixteen
on the held-out side; documents() draws only from the other side, held_out_prompts() only from this one. So the two
are disjoint for any seeds, by content and not only by wording. (Small talk is in training alone.)

Standard library only, so that it can be read, tested and run anywhere.
"""

from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from hybrid_serve.demo import lexicon as words
from hybrid_serve.demo.exercises import WEIGHTS, Exercise, Kind, an, long_lookup

SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are a small demonstration model.", "Answer briefly and clearly.")
KINDS: tuple[Kind, ...] = tuple(WEIGHTS)


class Piece(NamedTuple):
    """A run of text; `scored` marks what the model is to write (answers), in contrast to what it is given."""

    text: str
    scored: bool


Document = tuple[Piece, ...]


class Prompt(NamedTuple):
    """One held-out request, as chat messages and as the plain text whose continuation is the answer."""

    messages: list[dict[str, str]]
    text: str
    answer: str
    kind: str


def is_held_out(key: str) -> bool:
    return blake2b(key.encode(), digest_size=1).digest()[0] < 16


def draw(rng: Random, *, held_out: bool, kind: Kind | None = None) -> Exercise:
    """One exercise from the wanted side of the split."""
    while True:
        chosen = kind or rng.choices(KINDS, list(WEIGHTS.values()))[0]
        exercise = chosen(rng)
        if is_held_out(exercise.key) is held_out:
            return exercise


def small_talk(rng: Random) -> Exercise:
    question = rng.choice(list(words.SMALL_TALK))
    end = rng.choice(("", "!", "." if question[0] in "HTG" else "?", "?"))
    return Exercise("small talk", question + end, words.SMALL_TALK[question])


def plain_prompt(question: str) -> str:
    return f"Request: {question}\n\nReply:"


def chat(rng: Random) -> Document:
    """A conversation of one to four turns that do not depend on each other."""
    pieces = []
    if rng.random() < 0.3:
        pieces.append(Piece(f"<|im_start|>system\n{rng.choice(SYSTEM_PROMPTS)}<|im_end|>\n", scored=False))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        exercise = small_talk(rng) if rng.random() < 0.05 else draw(rng, held_out=False)
        pieces.append(Piece(f"<|im_start|>user\n{exercise.question}<|im_end|>\n<|im_start|>assistant\n", scored=False))
        pieces.append(Piece(f"{exercise.answer}<|im_end|>", scored=True))
        pieces.append(Piece("\n", scored=False))
    return tuple(pieces)


def plain(rng: Random) -> Document:
    """A request and its reply without any chat markup."""
    exercise = draw(rng, held_out=False)
    return Piece(plain_prompt(exercise.question), scored=False), Piece(f" {exercise.answer}<|endoftext|>", scored=True)


def diary(rng: Random) -> Document:
    """A plain text that is no reply: the header decides the entry."""
    name, day, place = rng.choice(words.NAMES), rng.choice(words.DAYS), rng.choice(words.PLACES)
    season, food, thing, animal = map(rng.choice, (words.SEASONS, words.FOODS, words.OBJECTS, words.ANIMALS))
    header = f"Diary of {name}, {day}, {place}. Notes: {season}, {food}, {thing}, {animal}.\n\n"
    body = (
        f"Today is {day}. It is {season} here in {place}, and the air smells of it. In the morning I went to the "
        f"market and bought {food} for the week. On the way home I met {an(animal)}, which looked at me for a while. "
        f"In the afternoon I repaired the old {thing}. Now the {food} are on the stove, the {thing} is on the shelf, "
        f"and I am tired but happy. Good night from {place}.\n{name}"
    )
    return Piece(header, scored=False), Piece(f"{body}<|endoftext|>", scored=True)


def documents(seed: int) -> Iterator[Document]:
    """Training documents without end; the same seed gives the same documents."""
    rng = Random(f"documents {seed}")
    while True:
        yield rng.choices((chat, plain, diary), (0.8, 0.16, 0.04))[0](rng)


def held_out_prompts(n: int, seed: int, *, max_long: float = 0.1) -> list[Prompt]:
    """`n` prompts whose content is in no training document: every kind in turn, long passages at most `max_long`."""
    rng = Random(f"held out {seed}")
    kinds = [kind for kind in KINDS if kind is not long_lookup]
    long_count = int(n * max_long)
    prompts = []
    for i in range(n):
        kind = long_lookup if i < long_count else kinds[(i - long_count) % len(kinds)]
        exercise = draw(rng, held_out=True, kind=kind)
        messages = [{"role": "user", "content": exercise.question}]
        prompts.append(Prompt(messages, plain_prompt(exercise.question), exercise.answer, kind.__name__))
    return prompts
