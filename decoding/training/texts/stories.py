"""Owns the very short stories: a cast is drawn once, then a plot tells beginning, middle and end with it.

Does not know the chat form (`chat.py`). Invariant: every name, animal, thing and place in a story is from its cast.
"""

from dataclasses import dataclass
from random import Random

from decoding.training.texts.plots import DAY_OPENINGS, ENDINGS, FRIENDS, OPENINGS, PLOTS
from decoding.training.texts.words import ANIMALS, COLOURS, Person, draw_people, split_words

PLACES = (
    "the forest",
    "the garden",
    "the park",
    "the meadow",
    "the village",
    "the beach",
    "the old mill",
    "the market",
    "the orchard",
    "the farm",
    "the hill",
    "the lake",
    "the river",
    "the barn",
)
TREASURES = split_words(
    "ball kite hat scarf key bell drum book ring boat basket lantern blanket shell ribbon cup whistle"
)
FOODS = [
    "apple pie",
    "honey cake",
    "loaf of bread",
    "bowl of soup",
    "basket of berries",
    "jar of jam",
    "bag of nuts",
    "pear tart",
]
TRAITS = split_words("kind brave shy curious cheerful quiet clever gentle patient funny careful little")
WEATHERS = split_words("sunny windy cold warm rainy bright misty snowy")
HIDING = (
    "under a bush",
    "behind a tree",
    "in the tall grass",
    "under a stone",
    "beside the path",
    "in a hollow log",
    "on a branch",
    "near the gate",
)


@dataclass(frozen=True)
class Cast:
    """Who and what a story is about."""

    hero: Person
    hero_kind: str
    friend: Person
    friend_kind: str
    trait: str
    place: str
    treasure: str
    colour: str
    food: str
    weather: str
    hiding: str

    def fill(self, text: str) -> str:
        """Puts the cast into a template; `{S}`, `{s}`, `{o}`, `{p}` are the hero's pronouns, with `f` the friend's."""
        return text.format(
            hero=self.hero.name,
            kind=self.hero_kind,
            friend=self.friend.name,
            fkind=self.friend_kind,
            S=self.hero.start,
            s=self.hero.subject,
            o=self.hero.object,
            p=self.hero.possessive,
            FS=self.friend.start,
            fs=self.friend.subject,
            fo=self.friend.object,
            fp=self.friend.possessive,
            trait=self.trait,
            place=self.place,
            thing=self.treasure,
            colour=self.colour,
            food=self.food,
            weather=self.weather,
            hiding=self.hiding,
        )


def draw_cast(random: Random) -> Cast:
    """A cast in which hero and friend differ in name and kind."""
    hero, friend = draw_people(random, 2)
    kinds = random.sample(ANIMALS, 2)
    return Cast(
        hero,
        kinds[0],
        friend,
        kinds[1],
        random.choice(TRAITS),
        random.choice(PLACES),
        random.choice(TREASURES),
        random.choice(COLOURS),
        random.choice(FOODS),
        random.choice(WEATHERS),
        random.choice(HIDING),
    )


def tell_story(random: Random, cast: Cast) -> str:
    """One story of 60 to 200 tokens: opening, friend, plot, ending."""
    parts = [random.choice(OPENINGS), random.choice(FRIENDS)]
    parts += [random.choice(choices) for choices in random.choice(PLOTS)]
    text = " ".join([*parts, random.choice(ENDINGS)])
    text = text.replace("{day}", random.choice(DAY_OPENINGS)).replace("{p_start}", cast.hero.possessive.capitalize())
    return with_articles(cast.fill(text))


def with_articles(text: str) -> str:
    """Writes `an` before the vowels that the word lists hold."""
    for vowel in "aeio":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    return text


def draw_story(random: Random) -> str:
    """A story with a cast of its own, ending in a line break."""
    return tell_story(random, draw_cast(random)) + "\n"
