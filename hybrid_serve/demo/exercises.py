"""Kinds of requests whose answer follows from the request: each function draws one from a random generator.

Answers leave (almost) nothing to chance, so a model that has learnt them decodes with confidence. That matters
twice: greedy decoding with and without a drafter can be compared token by token, and drafting pays.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from hybrid_serve.demo import lexicon as words


class Exercise(NamedTuple):
    """`key` names the content without its phrasing; the split into training and held-out goes by it."""

    key: str
    question: str
    answer: str


def an(word: str) -> str:
    return f"an {word}" if word[0] in "aeio" or word.startswith("um") else f"a {word}"


def listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def key_of(kind: str, *parts: object) -> str:
    return "|".join([kind, *map(str, parts)])


def story(rng: Random) -> Exercise:
    theme = rng.choice(list(words.STORIES))
    slots = {
        "hero": rng.choice(words.NAMES),
        "profession": rng.choice(words.PROFESSIONS),
        "place": rng.choice(words.PLACES),
        "colour": rng.choice(words.COLOURS),
        "animal": rng.choice(words.ANIMALS),
        "object": rng.choice(words.OBJECTS),
        "season": rng.choice(words.SEASONS),
    }
    slots |= {f"a_{name}": an(slots[name]) for name in ("profession", "colour", "object")}
    question = rng.choice(
        (
            "Tell me a story about {theme}. The hero is {hero}, {a_profession} from {place}. There should be "
            "{a_colour} {animal} and {a_object} in it. It happens in {season}.",
            "Write a short story about {theme} with {hero} the {profession}, {a_colour} {animal} and {a_object}. "
            "Place: {place}. Season: {season}.",
            "Please write a {season} story. Theme: {theme}. Hero: {hero}. Work: {profession}. Place: {place}. "
            "Animal: {colour} {animal}. Object: {object}.",
        )
    ).format(theme=theme, **slots)
    return Exercise(key_of("story", theme, *slots.values()), question, words.STORIES[theme].format(**slots))


def recipe(rng: Random) -> Exercise:
    dish, vessel = rng.choice(words.DISHES), rng.choice(words.VESSELS)
    first, second = rng.sample(words.FOODS, 2)
    spice, other = rng.sample(words.SPICES, 2)
    minutes, people = rng.choice((10, 15, 20, 25, 30, 40, 45, 50, 60)), rng.randint(2, 9)
    question = rng.choice(
        (
            f"Give me a recipe for {an(dish)} with {first}, {second}, {spice} and {other}. I have a {vessel}, "
            f"{minutes} minutes and {people} guests.",
            f"How do I cook {an(dish)}? Ingredients: {first}, {second}, {spice}, {other}. Use a {vessel}. "
            f"Time: {minutes} minutes. People: {people}.",
        )
    )
    answer = (
        f"Here is a recipe for {an(dish)} with {first} and {second} for {people} people.\n"
        f"1. Wash the {first} and cut them into small pieces.\n"
        f"2. Heat some oil in the {vessel} and add the {spice}.\n"
        f"3. Add the {first} and stir for five minutes.\n"
        f"4. Add the {second}, the {other} and a little salt.\n"
        f"5. Cover the {vessel} and let the {dish} cook for {minutes} minutes.\n"
        f"6. Taste it, add more {spice} if you like, and share it among {people} plates.\n"
        f"Enjoy your {dish}!"
    )
    return Exercise(key_of("recipe", dish, vessel, first, second, spice, other, minutes, people), question, answer)


def invitation(rng: Random) -> Exercise:
    sender, guest = rng.sample(words.NAMES, 2)
    event, place, day = rng.choice(words.EVENTS), rng.choice(words.PLACES), rng.choice(words.DAYS)
    hour, bring = rng.randint(1, 11), rng.choice(words.OBJECTS)
    question = rng.choice(
        (
            f"Write an invitation from {sender} to {guest} for a {event} in {place} on {day} at {hour} o'clock. "
            f"{guest} should bring {an(bring)}.",
            f"Please write a letter. From: {sender}. To: {guest}. Event: {event}. Where: {place}. When: {day}, "
            f"{hour} o'clock. Bring: {bring}.",
        )
    )
    answer = (
        f"Dear {guest},\n\nI am happy to invite you to a {event} in {place}. We will meet on {day} at {hour} o'clock. "
        f"Please bring {an(bring)} with you, because we will need it for the {event}. There will be music, good food "
        f"and many old friends. If you cannot come on {day}, please let me know soon.\n\n"
        f"I look forward to seeing you in {place}.\n\nYours,\n{sender}"
    )
    return Exercise(key_of("invitation", sender, guest, event, place, day, hour, bring), question, answer)


def item_list(rng: Random, low: int, high: int) -> list[str]:
    return rng.sample(rng.choice((words.ANIMALS, words.OBJECTS, words.NAMES, words.FOODS)), rng.randint(low, high))


def reversal(rng: Random) -> Exercise:
    items = item_list(rng, 6, 14)
    question = rng.choice(("Reverse this list: {}.", "Write these words in reverse order: {}."))
    answer = f"In reverse order the list is: {', '.join(items[::-1])}. It has {len(items)} entries."
    return Exercise(key_of("reversal", *items), question.format(", ".join(items)), answer)


def numbering(rng: Random) -> Exercise:
    items = item_list(rng, 6, 14)
    question = rng.choice(("Number these words: {}.", "Make a numbered list of {}.")).format(", ".join(items))
    return Exercise(key_of("numbering", *items), question, "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)))


def repetition(rng: Random) -> Exercise:
    items, times = item_list(rng, 3, 8), rng.randint(2, 5)
    question = rng.choice(("Repeat this {} times: {}.", "Say the following {} times: {}."))
    answer = "\n".join([", ".join(items) + "."] * times)
    return Exercise(key_of("repetition", times, *items), question.format(times, ", ".join(items)), answer)


def sorting(rng: Random) -> Exercise:
    items = item_list(rng, 4, 9)
    question = rng.choice(("Sort these words alphabetically: {}.", "Put these in alphabetical order: {}."))
    in_order = ", ".join(sorted(items))
    answer = f"In alphabetical order: {in_order}. The first is {min(items)} and the last is {max(items)}."
    return Exercise(key_of("sorting", *items), question.format(", ".join(items)), answer)


def counting(rng: Random) -> Exercise:
    start, step, steps = rng.randint(1, 300), rng.choice((1, 1, 1, 2, 2, 5, 10)), rng.randint(8, 30)
    down = rng.random() < 0.3 and start > steps * step
    stop = start + steps * step * (-1 if down else 1)
    question = f"Count {'down ' if down else ''}from {start} to {stop}" + (f" in steps of {step}." if step > 1 else ".")
    numbers = [str(start + i * step * (-1 if down else 1)) for i in range(steps + 1)]
    return Exercise(key_of("counting", start, stop, step), question, ", ".join(numbers) + ".")


def table(rng: Random) -> Exercise:
    factor, first, rows = rng.randint(2, 20), rng.randint(1, 8), rng.randint(6, 13)
    question = rng.choice(
        (
            f"Write the multiplication table of {factor} from {first} to {first + rows - 1}.",
            f"Multiply {factor} by each number from {first} to {first + rows - 1}.",
        )
    )
    answer = "\n".join(f"{factor} x {i} = {factor * i}" for i in range(first, first + rows))
    return Exercise(key_of("table", factor, first, rows), question, answer)


def description(animal: str) -> str:
    kind, home, food, skill = words.ANIMAL_FACTS[animal]
    return f"The {animal} is {an(kind)}. It lives {home} and eats {food}. It is known for {skill}."


def animals(rng: Random) -> Exercise:
    chosen = rng.sample(list(words.ANIMAL_FACTS), rng.randint(2, 5))
    names = listed([f"the {animal}" for animal in chosen])
    question = rng.choice(("Tell me about {}.", "Describe {}.", "What do you know about {}?")).format(names)
    return Exercise(key_of("animals", *chosen), question, "\n".join(description(animal) for animal in chosen))


def replacing(rng: Random) -> Exercise:
    old, new = rng.sample(words.NAMES, 2)
    pieces = [
        f"{old} bought {an(rng.choice(words.COLOURS))} {rng.choice(words.OBJECTS)} in {rng.choice(words.PLACES)}.",
        f"On {rng.choice(words.DAYS)} {old} cooked {rng.choice(words.FOODS)} with {rng.choice(words.SPICES)}.",
        f"The {rng.choice(words.PROFESSIONS)} gave {old} {an(rng.choice(words.ANIMALS))}.",
        f"{old} spent the {rng.choice(words.SEASONS)} in {rng.choice(words.PLACES)}.",
        f"In {rng.choice(words.PLACES)} {old} met {an(rng.choice(words.PROFESSIONS))}.",
        f"{old} lost the {rng.choice(words.COLOURS)} {rng.choice(words.OBJECTS)} near the river.",
    ]
    text = " ".join(rng.sample(pieces, rng.randint(3, 6)))
    question = rng.choice(
        (f"Replace {old} with {new} in this text: {text}", f"Copy this, but write {new} instead of {old}: {text}")
    )
    return Exercise(key_of("replacing", new, text), question, text.replace(old, new))


def schedule(rng: Random) -> Exercise:
    entries = rng.sample(words.ACTIVITIES, rng.randint(3, 7))
    hours = sorted(rng.sample(range(8, 23), len(entries)))
    rooms, hosts = [rng.choice(words.ROOMS) for _ in entries], rng.sample(words.NAMES, len(entries))
    rows = list(zip(hours, entries, rooms, hosts, strict=True))
    lines = "\n".join(f"{hour}:00 {entry}, {room}, {host}" for hour, entry, room, host in rows)
    question = rng.choice(("Write this plan in full sentences:\n", "Turn this timetable into sentences:\n")) + lines
    answer = " ".join(
        f"At {hour} o'clock there is the {entry} in {room}, led by {host}." for hour, entry, room, host in rows
    )
    return Exercise(key_of("schedule", lines), question, answer)


def lookup(rng: Random, low: int = 3, high: int = 12) -> Exercise:
    """Questions on a passage of `low` to `high` people, about 27 tokens each."""
    people = rng.sample(words.NAMES, rng.randint(low, high))
    passage, answers = [], {}
    for name in people:
        work, place, colour = rng.choice(words.PROFESSIONS), rng.choice(words.PLACES), rng.choice(words.COLOURS)
        animal, thing, day = rng.choice(words.ANIMALS), rng.choice(words.OBJECTS), rng.choice(words.DAYS)
        passage.append(
            f"{name} is {an(work)} from {place} and has {an(colour)} {animal}. "
            f"On {day} {name} always carries {an(thing)}."
        )
        answers[name] = (
            f"{name} works as {an(work)} and comes from {place}. The animal of {name} is {an(colour)} {animal}. "
            f"Every {day} {name} carries {an(thing)}."
        )
    asked = rng.sample(people, min(len(people), rng.randint(2, 5)))
    text = " ".join(passage)
    question = rng.choice(
        (
            f"Read this text.\n\n{text}\n\nWhat does it say about {listed(asked)}?",
            f"{text}\n\nTell me what you know about {listed(asked)}.",
        )
    )
    return Exercise(key_of("lookup", text, *asked), question, "\n".join(answers[name] for name in asked))


def long_lookup(rng: Random) -> Exercise:
    """The same on 1,000 to 1,800 tokens, so that a long context has to be used."""
    return lookup(rng, 40, 60)


Kind = Callable[[Random], Exercise]

WEIGHTS: dict[Kind, float] = {
    story: 5,
    recipe: 2.5,
    invitation: 2,
    reversal: 1,
    numbering: 1,
    repetition: 1,
    sorting: 1.5,
    counting: 1.2,
    table: 1.2,
    animals: 1.5,
    replacing: 1.5,
    schedule: 1.5,
    lookup: 3,
    long_lookup: 0.8,
}
