"""Owns the families of word problems: each draws numbers, tells a small story and writes the steps out.

Does not know the split or the tokenizer. Invariant: all numbers, also between steps, are whole and from 0 to 999.
"""

from collections.abc import Callable
from random import Random

from decoding.training.texts.arithmetic import Problem, calculate, equation
from decoding.training.texts.words import CONTAINERS, COUNTABLES, DAYS, GOODS, Person, draw_people, split_words


class Ledger:
    """A running total that writes each step as it is taken."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def say(self, sentence: str) -> None:
        """Adds a sentence without a calculation."""
        self.steps.append(sentence)

    def take(self, left: int, operator: str, right: int, reason: str) -> int:
        """Adds `reason: left operator right = value.` and returns the value."""
        self.steps.append(f"{reason}: {equation(left, operator, right)}.")
        return calculate(left, operator, right)


def _problem(family: str, numbers: list[int], question: str, ledger: Ledger, result: int) -> Problem:
    assert 0 <= result < 1000, (family, numbers, result)
    return Problem(family, tuple(numbers), question, tuple(ledger.steps), result)


def _gains_and_losses(random: Random) -> Problem:
    person, friend = draw_people(random, 2)
    things = random.choice(COUNTABLES)
    total = random.randint(5, 99)
    numbers = [total]
    ledger = Ledger()
    ledger.say(f"{person.name} starts with {total} {things}.")
    told = [f"{person.name} has {total} {things}."]
    for index in range(random.randint(2, 4)):
        is_gain = total < 6 or random.random() < 0.5
        amount = random.randint(2, 60) if is_gain else random.randint(2, total - 1)
        numbers.append(amount if is_gain else -amount)
        sentence, reason = _event(random, is_gain, amount, things, person, friend)
        told.append(sentence if index == 0 else random.choice(["Then ", "After that ", "Next "]) + _lower(sentence))
        total = ledger.take(total, "+" if is_gain else "-", amount, reason)
    told.append(f"How many {things} does {person.name} have now?")
    return _problem("gains", numbers, " ".join(told), ledger, total)


def _event(random: Random, is_gain: bool, amount: int, things: str, person: Person, friend: Person) -> tuple[str, str]:
    if is_gain:
        return random.choice(
            [
                (f"{person.start} finds {amount} more {things}.", f"{person.start} finds {amount} more"),
                (f"{person.start} buys {amount} {things}.", f"{person.start} buys {amount}"),
                (
                    f"{person.start} gets {amount} {things} from {friend.name}.",
                    f"{person.start} gets {amount}",
                ),
            ]
        )
    return random.choice(
        [
            (f"{person.start} loses {amount} {things}.", f"{person.start} loses {amount}"),
            (
                f"{person.start} gives {amount} {things} to {friend.name}.",
                f"{person.start} gives away {amount}",
            ),
            (f"{person.start} sells {amount} {things}.", f"{person.start} sells {amount}"),
        ]
    )


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _containers(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    one, many = random.choice(CONTAINERS)
    things = random.choice(COUNTABLES)
    count, each = random.randint(2, 12), random.randint(2, 12)
    ledger = Ledger()
    total = ledger.take(count, "*", each, f"There are {count} {many} with {each} {things} each")
    change = random.randint(2, total - 1)
    told = f"{person.name} has {count} {many}. There are {each} {things} in each {one}. "
    if random.random() < 0.5:
        told += f"{person.start} {random.choice(['takes out', 'eats', 'gives away', 'sells'])} {change} {things}. "
        total = ledger.take(total, "-", change, f"Then {change} are gone")
        numbers = [count, each, -change]
    else:
        told += f"{person.start} also has {change} {things} on the table. "
        total = ledger.take(total, "+", change, f"Then {change} are on the table")
        numbers = [count, each, change]
    told += f"How many {things} does {person.name} have {random.choice(['in all', 'now', 'altogether'])}?"
    return _problem("containers", numbers, told, ledger, total)


def _shopping(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    (one, many), (other_one, other_many) = random.sample(GOODS, 2)
    count, price = random.randint(2, 9), random.randint(2, 9)
    other_count, other_price = random.randint(2, 6), random.randint(2, 9)
    ledger = Ledger()
    first = ledger.take(count, "*", price, f"The {many} cost")
    second = ledger.take(other_count, "*", other_price, f"The {other_many} cost")
    total = ledger.take(first, "+", second, "Together they cost")
    told = (
        f"{person.name} buys {count} {many} and {other_count} {other_many}. A {one} costs {price} dollars and a "
        f"{other_one} costs {other_price} dollars. "
    )
    numbers = [count, price, other_count, other_price]
    if random.random() < 0.5:
        return _problem("shopping", numbers, told + f"How much does {person.subject} pay?", ledger, total)
    money = total + random.randint(1, 40)
    told += f"{person.start} had {money} dollars. How many dollars are left?"
    left = ledger.take(money, "-", total, f"{person.start} had {money}, so what is left is")
    return _problem("shopping", [*numbers, money], told, ledger, left)


def _comparison(random: Random) -> Problem:
    first, second, third = draw_people(random, 3)
    things = random.choice(COUNTABLES)
    base, more = random.randint(4, 50), random.randint(2, 30)
    factor = random.choice([2, 3])
    ledger = Ledger()
    ledger.say(f"{first.name} has {base}.")
    middle = ledger.take(base, "+", more, f"{second.name} has {more} more than {first.name}")
    told = f"{first.name} has {base} {things}. {second.name} has {more} more {things} than {first.name}. "
    numbers = [base, more]
    if random.random() < 0.4:
        total = ledger.take(base, "+", middle, "Together they have")
        return _problem("comparison", numbers, told + f"How many {things} do they have together?", ledger, total)
    total = ledger.take(base, "+", middle, "Those two have")
    word = {2: "twice", 3: "three times"}[factor]
    told += f"{third.name} has {word} as many {things} as {first.name}. "
    last = ledger.take(base, "*", factor, f"{third.name} has {word} as many as {first.name}")
    total = ledger.take(total, "+", last, "All three have")
    told += f"How many {things} do the three have together?"
    return _problem("comparison", [*numbers, factor], told, ledger, total)


def _sharing(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    things = random.choice(COUNTABLES)
    children, each = random.randint(2, 10), random.randint(2, 12)
    extra, total = random.randint(2, 30), children * each
    kept = random.randint(2, 30)
    ledger = Ledger()
    rest = ledger.take(total + kept, "-", kept, f"{person.name} keeps {kept}, so there are left")
    share = ledger.take(rest, "/", children, f"Shared among {children}")
    told = (
        f"{person.name} has {total + kept} {things}. {person.start} keeps {kept} and shares the rest equally among "
        f"{children} {random.choice(['friends', 'children', 'neighbours'])}. "
    )
    numbers = [total, kept, children]
    if random.random() < 0.5:
        return _problem("sharing", numbers, told + f"How many {things} does each one get?", ledger, share)
    told += f"Each one already had {extra} {things}. How many {things} does each one have now?"
    return _problem("sharing", [*numbers, extra], told, ledger, ledger.take(share, "+", extra, f"With {extra} before"))


def _saving(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    weekly, weeks, start = random.randint(2, 12), random.randint(2, 10), random.randint(3, 60)
    period = random.choice(["week", "day", "month"])
    ledger = Ledger()
    saved = ledger.take(weekly, "*", weeks, f"In {weeks} {period}s {person.subject} saves")
    total = ledger.take(start, "+", saved, f"{person.start} had {start} before")
    told = (
        f"{person.name} had {start} dollars. {person.start} saves {weekly} dollars every {period} for {weeks} "
        f"{period}s. "
    )
    numbers = [weekly, weeks, start]
    if random.random() < 0.4:
        return _problem("saving", numbers, told + f"How many dollars does {person.name} have now?", ledger, total)
    price = random.randint(2, total - 1)
    told += f"Then {person.subject} buys a {random.choice(GOODS)[0]} for {price} dollars. How many dollars are left?"
    return _problem(
        "saving",
        [*numbers, price],
        told,
        ledger,
        ledger.take(total, "-", price, f"{person.start} pays {price}"),
    )


def _reading(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    days = random.sample(DAYS, random.randint(2, 3))
    read = [random.randint(3, 40) for _ in days]
    pages = sum(read) + random.randint(5, 90)
    ledger = Ledger()
    total = read[0]
    ledger.say(f"On {days[0]} {person.subject} reads {total} pages.")
    told = f"{person.name} has a book with {pages} pages. {person.start} reads {read[0]} pages on {days[0]}"
    for index, (day, amount) in enumerate(zip(days[1:], read[1:], strict=True)):
        told += f"{' and' if index == len(days) - 2 else ','} {amount} pages on {day}"
        total = ledger.take(total, "+", amount, f"With {day}")
    left = ledger.take(pages, "-", total, "Left to read")
    return _problem("reading", [pages, *read], told + ". How many pages are left?", ledger, left)


def _bus(random: Random) -> Problem:
    vehicle = random.choice(["bus", "train", "boat", "tram"])
    total = random.randint(10, 60)
    ledger = Ledger()
    ledger.say(f"The {vehicle} starts with {total} people.")
    told, numbers = f"There are {total} people on a {vehicle}.", [total]
    for stop in ("first", "second", "third")[: random.randint(1, 2)]:
        leaving, entering = random.randint(1, total - 1), random.randint(1, 30)
        told += f" At the {stop} stop {leaving} people get off and {entering} people get on."
        total = ledger.take(total, "-", leaving, f"At the {stop} stop {leaving} get off")
        total = ledger.take(total, "+", entering, f"Then {entering} get on")
        numbers += [leaving, entering]
    return _problem("bus", numbers, told + f" How many people are on the {vehicle} now?", ledger, total)


def _garden(random: Random) -> Problem:
    (person,) = draw_people(random, 1)
    (plants, other) = random.sample(split_words("roses tulips beans carrots peas trees onions lilies"), 2)
    rows, each, other_rows, other_each = (random.randint(2, 9) for _ in range(4))
    ledger = Ledger()
    first = ledger.take(rows, "*", each, f"There are {rows} rows of {each} {plants}")
    second = ledger.take(other_rows, "*", other_each, f"There are {other_rows} rows of {other_each} {other}")
    told = (
        f"{person.name} plants {rows} rows of {plants} with {each} in each row, and {other_rows} rows of {other} "
        f"with {other_each} in each row. "
    )
    numbers = [rows, each, other_rows, other_each]
    if first > second and random.random() < 0.5:
        told += f"How many more {plants} than {other} are there?"
        return _problem("garden-more", numbers, told, ledger, ledger.take(first, "-", second, "The difference is"))
    told += "How many plants are there in all?"
    return _problem("garden", numbers, told, ledger, ledger.take(first, "+", second, "In all"))


def _ages(random: Random) -> Problem:
    first, second, third = draw_people(random, 3)
    age, older = random.randint(4, 40), random.randint(2, 20)
    younger = random.randint(1, age + older - 1)
    ledger = Ledger()
    ledger.say(f"{first.name} is {age}.")
    second_age = ledger.take(age, "+", older, f"{second.name} is {older} years older")
    third_age = ledger.take(second_age, "-", younger, f"{third.name} is {younger} years younger than {second.name}")
    told = (
        f"{first.name} is {age} years old. {second.name} is {older} years older than {first.name}. "
        f"{third.name} is {younger} years younger than {second.name}. "
    )
    if random.random() < 0.5:
        return _problem("ages", [age, older, younger], told + f"How old is {third.name}?", ledger, third_age)
    total = ledger.take(age, "+", third_age, f"{first.name} and {third.name} together")
    told += f"How old are {first.name} and {third.name} together?"
    return _problem("ages-sum", [age, older, younger], told, ledger, total)


def _halves(random: Random) -> Problem:
    person, friend = draw_people(random, 2)
    things = random.choice(COUNTABLES)
    half, more = random.randint(2, 49), random.randint(2, 50)
    ledger = Ledger()
    rest = ledger.take(2 * half, "/", 2, f"Half of {2 * half} is")
    told = f"{person.name} has {2 * half} {things}. {person.start} gives half of them to {friend.name}. "
    told += f"Then {person.subject} finds {more} more. "
    total = ledger.take(rest, "+", more, f"Then {more} more")
    question = f"How many {things} does {person.name} have now?"
    return _problem("halves", [half, more], told + question, ledger, total)


FAMILIES: tuple[Callable[[Random], Problem], ...] = (
    _gains_and_losses,
    _containers,
    _shopping,
    _comparison,
    _sharing,
    _saving,
    _reading,
    _bus,
    _garden,
    _ages,
    _halves,
)


def draw_problem(random: Random) -> Problem:
    """One problem of a family drawn evenly."""
    return random.choice(FAMILIES)(random)
