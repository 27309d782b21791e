"""Owns the short chats: greetings, small facts, instructions, stories and questions about them, sums, code on request.

Does not know the markers around turns (`corpus.py`). Invariant: an answer follows from the chat or from the fact lists.
"""

from collections.abc import Callable
from random import Random

from decoding.training.texts.arithmetic import calculate, equation
from decoding.training.texts.functions import draw_function
from decoding.training.texts.programs import draw_program
from decoding.training.texts.split import draw_from_side
from decoding.training.texts.stories import PLACES, TREASURES, draw_cast, tell_story, with_articles
from decoding.training.texts.words import ANIMALS, COLOURS, COUNTABLES, DAYS, draw_people

Turn = tuple[str, str]

_GREETINGS = ("Hello", "Hi", "Hello there", "Good morning", "Good evening", "Hey", "Hi there", "Good day")
_GREETING_ANSWERS = (
    "{greeting}! How can I help you?",
    "{greeting}! Would you like a story?",
    "{greeting}! It is nice to meet you.",
    "{greeting}! What can I do for you today?",
)
_SELF = (
    ("What is your name?", "My name is Gosling."),
    ("Who are you?", "I am Gosling, a very small language model."),
    ("What are you?", "I am a small language model."),
    ("How are you?", "I am well, thank you. How are you?"),
    ("What can you do?", "I can tell short stories, solve small sums and write simple Python code."),
    ("Are you a person?", "No, I am a small language model."),
    ("Can you help me?", "Yes, of course. What do you need?"),
    ("How old are you?", "I am a program, so I have no age."),
    ("Do you like stories?", "Yes, I like short stories best."),
    ("Can you write code?", "Yes, I can write simple Python code."),
    ("Thank you!", "You are welcome!"),
    ("Thanks a lot!", "You are welcome! I am glad I could help."),
    ("Goodbye!", "Goodbye! Have a nice day."),
    ("Bye!", "Bye! See you soon."),
    ("Good night!", "Good night! Sleep well."),
    ("What is Gander?", "Gander is a server for language models. I am the small model that comes with it."),
    ("Who made you?", "I was made by a training script that comes with Gander."),
    ("Do you know everything?", "No, I am very small and know only a few things."),
)
_FACTS = (
    ("What colour is the sky?", "The sky is blue."),
    ("What colour is grass?", "Grass is green."),
    ("What colour is snow?", "Snow is white."),
    ("What colour is a lemon?", "A lemon is yellow."),
    ("What colour is coal?", "Coal is black."),
    ("What colour is a strawberry?", "A strawberry is red."),
    ("What sound does a dog make?", "A dog barks."),
    ("What sound does a cat make?", "A cat meows."),
    ("What sound does a cow make?", "A cow moos."),
    ("What sound does a duck make?", "A duck quacks."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many legs does a dog have?", "A dog has four legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("How many minutes are in an hour?", "There are sixty minutes in an hour."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Spain?", "The capital of Spain is Madrid."),
    ("What is the capital of Germany?", "The capital of Germany is Berlin."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What is the capital of Egypt?", "The capital of Egypt is Cairo."),
    ("Where do fish live?", "Fish live in water."),
    ("Where do birds sleep?", "Many birds sleep in nests or on branches."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows eat?", "Cows eat grass."),
    ("What is ice made of?", "Ice is frozen water."),
    ("When does the sun rise?", "The sun rises in the morning."),
    ("What season comes after winter?", "Spring comes after winter."),
    ("What season comes after summer?", "Autumn comes after summer."),
    ("What is the baby of a goose called?", "The baby of a goose is called a gosling."),
    ("What is the baby of a dog called?", "The baby of a dog is called a puppy."),
    ("What is the baby of a cat called?", "The baby of a cat is called a kitten."),
)
_OPPOSITES = (
    ("big", "small"),
    ("hot", "cold"),
    ("fast", "slow"),
    ("old", "young"),
    ("high", "low"),
    ("happy", "sad"),
    ("light", "dark"),
    ("open", "closed"),
    ("full", "empty"),
    ("loud", "quiet"),
    ("hard", "soft"),
    ("near", "far"),
    ("day", "night"),
    ("wet", "dry"),
    ("strong", "weak"),
    ("early", "late"),
    ("left", "right"),
    ("long", "short"),
)


def _greeting(random: Random) -> list[Turn]:
    greeting = random.choice(_GREETINGS)
    answer = random.choice(_GREETING_ANSWERS).format(greeting=greeting)
    return [(greeting + random.choice(["", "!", "."]), answer), *random.sample(_SELF, random.randint(0, 2))]


def _talk(random: Random) -> list[Turn]:
    return random.sample(_SELF + _FACTS + _FACTS, random.randint(1, 3))


def _opposite(random: Random) -> list[Turn]:
    one, other = random.choice(_OPPOSITES)
    if random.random() < 0.5:
        one, other = other, one
    return [(f"What is the opposite of {one}?", f"The opposite of {one} is {other}.")]


def _list(random: Random) -> list[Turn]:
    name, pool = random.choice([("animals", ANIMALS), ("colours", COLOURS), ("days of the week", DAYS)])
    count = random.randint(2, 6)
    items = pool[:count] if pool is DAYS else random.sample(pool, count)
    if random.random() < 0.5:
        return [(f"Name {count} {name}.", f"{', '.join(items[:-1]).capitalize()} and {items[-1]}.")]
    return [(f"Make a list of {count} {name}.", "\n".join(f"{row + 1}. {item}" for row, item in enumerate(items)))]


def _count(random: Random) -> list[Turn]:
    first = random.randint(1, 40)
    last = first + random.randint(2, 9)
    if random.random() < 0.3:
        return [(f"Count down from {last} to {first}.", ", ".join(map(str, range(last, first - 1, -1))) + ".")]
    return [(f"Count from {first} to {last}.", ", ".join(map(str, range(first, last + 1))) + ".")]


def _words(random: Random) -> list[Turn]:
    word = random.choice(TREASURES + ANIMALS + COLOURS + COUNTABLES)
    return [
        random.choice(
            [
                (f"Spell the word {word}.", "-".join(word) + "."),
                (f"Say the word {word} three times.", f"{word} {word} {word}"),
                (f"Write {word} in capital letters.", word.upper()),
                (f"How do you spell {word}?", "-".join(word) + "."),
                (f'Repeat after me: "{word}".', word),
                (f"What is the first letter of {word}?", f"The first letter is {word[0]}."),
            ]
        )
    ]


def _story(random: Random, held_out: bool) -> list[Turn]:
    cast = draw_cast(random)
    story = draw_from_side(random, lambda source: tell_story(source, cast) + "\n", held_out)
    ask = random.choice(
        [
            "Tell me a story.",
            "Please tell me a short story.",
            f"Tell me a story about a {cast.hero_kind}.",
            f"Write a short story about a {cast.hero_kind} and a {cast.friend_kind}.",
            f"Tell me a story about a {cast.hero_kind} named {cast.hero.name}.",
            "I want to hear a story.",
        ]
    )
    turns = [(with_articles(ask), story.rstrip())]
    if random.random() < 0.4:
        turns.append(
            random.choice(
                [
                    (
                        f"What animal is {cast.hero.name}?",
                        with_articles(f"{cast.hero.name} is a {cast.hero_kind}."),
                    ),
                    (
                        f"What animal is {cast.friend.name}?",
                        with_articles(f"{cast.friend.name} is a {cast.friend_kind}."),
                    ),
                    (
                        f"Who is the friend of {cast.hero.name}?",
                        f"The friend of {cast.hero.name} is {cast.friend.name}.",
                    ),
                    ("Thank you for the story!", "You are welcome!"),
                ]
            )
        )
    return turns


def _questions(random: Random) -> list[Turn]:
    first, second = draw_people(random, 2)
    thing, colour, place, animal = (random.choice(pool) for pool in (TREASURES, COLOURS, PLACES, ANIMALS))
    scene = random.choice(
        [
            f"{first.name} found a {colour} {thing} near {place}. {second.name} saw a {animal}.",
            f"{second.name} went to {place} and saw a {animal}. {first.name} stayed at home with a {colour} {thing}.",
        ]
    )
    asks = [
        (f"Who had the {thing}?", f"{first.name} had the {thing}."),
        (f"Who saw the {animal}?", f"{second.name} saw the {animal}."),
        (f"What colour was the {thing}?", f"The {thing} was {colour}."),
        (f"What did {second.name} see?", f"{second.name} saw a {animal}."),
    ]
    chosen = random.sample(asks, random.randint(1, 3))
    turns = [(f"{scene} {chosen[0][0]}", chosen[0][1]), *chosen[1:]]
    return [(with_articles(asked), with_articles(answer)) for asked, answer in turns]


def _sum(random: Random) -> list[Turn]:
    operator = random.choice("++--*")
    left, right = (
        (random.randint(2, 12), random.randint(2, 12))
        if operator == "*"
        else sorted((random.randint(1, 99), random.randint(1, 99)), reverse=True)
    )
    word = {"+": "plus", "-": "minus", "*": "times"}[operator]
    ask = random.choice(
        [
            f"What is {left} {word} {right}?",
            f"What is {left} {operator} {right}?",
            f"{left} {operator} {right} = ?",
        ]
    )
    short = f"It is {calculate(left, operator, right)}."
    return [(ask, random.choice([equation(left, operator, right) + ".", short]))]


def _code(random: Random, held_out: bool) -> list[Turn]:
    if random.random() < 0.6:
        source = draw_from_side(random, draw_function, held_out)
        name = source[4 : source.index("(")]
        ask = random.choice([f"Write a Python function called {name}.", f"Write the function {name} in Python."])
    else:
        source = draw_from_side(random, draw_program, held_out)
        found = [line for line in source.split("\n") if line.startswith(("class ", "def "))]
        name = found[0].split()[1].split("(")[0].rstrip(":")
        ask = f"Write Python code with {name}."
    return [(ask, f"```python\n{source}```")]


_SMALL_TALK: tuple[Callable[[Random], list[Turn]], ...] = (
    _greeting,
    _talk,
    _talk,
    _opposite,
    _list,
    _count,
    _words,
    _questions,
    _questions,
    _sum,
)


def draw_chat(random: Random, held_out: bool) -> list[Turn]:
    """One chat of one to three (user, assistant) turns. held_out: the side of the split for stories and programs."""
    chance = random.random()
    if chance < 0.2:
        return _story(random, held_out)
    if chance < 0.33:
        return _code(random, held_out)
    return random.choice(_SMALL_TALK)(random)
