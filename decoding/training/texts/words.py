"""Owns the word lists that every part of the corpus draws from, and the people with their pronouns.

Knows nothing about documents or tokens. Invariant: the lists are constants, so the same seed gives the same text.
"""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Person:
    """A name with the pronouns that go with it."""

    name: str
    subject: str
    object: str
    possessive: str

    @property
    def start(self) -> str:
        """The pronoun as the first word of a sentence."""
        return self.subject.capitalize()


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


GIRLS = split_words("Anna Mia Lily Ella Sara Nora Ruby Lucy Zoe Emma Ivy Clara Rosa Maya Jane Ada Kate Amy Tina Lena")
BOYS = split_words("Tom Ben Sam Max Leo Jack Finn Noah Adam Tim Oscar Hugo Paul Dan Omar Luke Peter Carl Bob Ivan")

COUNTABLES = split_words(
    "apples pears plums books stickers marbles pencils cards shells stamps coins cookies muffins "
    "balloons buttons flowers eggs beads crayons stones toys ribbons candles oranges lemons nuts "
    "keys cups hats postcards"
)
CONTAINERS = (
    ("box", "boxes"),
    ("bag", "bags"),
    ("basket", "baskets"),
    ("jar", "jars"),
    ("shelf", "shelves"),
    ("crate", "crates"),
    ("drawer", "drawers"),
    ("tray", "trays"),
    ("pack", "packs"),
    ("bowl", "bowls"),
)
GOODS = (
    ("pen", "pens"),
    ("ball", "balls"),
    ("kite", "kites"),
    ("cake", "cakes"),
    ("book", "books"),
    ("cap", "caps"),
    ("mug", "mugs"),
    ("lamp", "lamps"),
    ("scarf", "scarves"),
    ("ticket", "tickets"),
    ("plant", "plants"),
    ("sandwich", "sandwiches"),
    ("notebook", "notebooks"),
    ("puzzle", "puzzles"),
    ("brush", "brushes"),
)
DAYS = split_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
ANIMALS = split_words(
    "fox rabbit bear mouse cat dog duck goose frog hedgehog squirrel owl turtle deer hen lamb pony otter"
)
COLOURS = split_words("red blue green yellow white black brown pink orange purple silver golden")


def draw_people(random: Random, count: int) -> list[Person]:
    """`count` people with different names."""
    names = random.sample(GIRLS + BOYS, count)
    return [Person(name, "she", "her", "her") if name in GIRLS else Person(name, "he", "him", "his") for name in names]
