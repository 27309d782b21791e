"""Owns the generated Python with repeated structure: classes, tables, tests, parsers, dispatchers.

Does not know the standard library's text (`library.py`) or the short documented functions (`functions.py`).
Invariant: every program parses.
"""

from collections.abc import Callable
from random import Random

from decoding.training.texts.words import split_words

NOUNS = split_words(
    "account album author band barn basket bench book bridge camera car card chair client clock "
    "cloud coin college course customer device doctor document engine event farm field file "
    "flight forest game garden gate harbor hotel house invoice island item job kettle ladder lamp "
    "lane lantern lesson letter machine market meal message mirror movie museum node orchard "
    "order packet page parcel patient payment phone pillow plant player product project queue "
    "recipe record river robot room route school sensor server ship shop song station store "
    "street student task teacher team ticket tool town train tree truck user vehicle village "
    "wallet window worker zone"
)
FIELDS = {
    "str": split_words("name title label color city country email phone code status owner notes kind brand language"),
    "int": split_words(
        "width height age count size level year price quantity score rank weight_grams capacity index version"
    ),
    "float": split_words("weight ratio speed rating balance distance temperature latitude longitude amount"),
    "bool": split_words("active visible ready locked enabled paid open_now archived"),
}
VERBS = split_words(
    "add remove update find count list open close start stop load save send check reset copy move print"
)
LITERALS = {
    "str": [
        '"alpha"',
        '"beta"',
        '"gamma"',
        '"north"',
        '"blue"',
        '"small"',
        '"main"',
        '"old"',
        '"new"',
        '"first"',
    ],
    "bool": ["True", "False"],
}


def title(noun: str) -> str:
    """The class name of a noun: `order` gives `Order`, `order_line` gives `OrderLine`."""
    return "".join(part.capitalize() for part in noun.split("_"))


def draw_noun(random: Random) -> str:
    """A plain noun, or now and then a compound of two."""
    return "_".join(random.sample(NOUNS, 2)) if random.random() < 0.3 else random.choice(NOUNS)


def draw_fields(random: Random, count: int) -> list[tuple[str, str]]:
    """`count` different (name, type) pairs."""
    pool = [(name, kind) for kind, names in FIELDS.items() for name in names]
    return random.sample(pool, count)


def literal(random: Random, kind: str) -> str:
    """The source of a value of the type."""
    if kind in LITERALS:
        return random.choice(LITERALS[kind])
    return str(random.randint(0, 99)) if kind == "int" else f"{random.randint(0, 99)}.{random.randint(0, 9)}"


def _initializer(fields: list[tuple[str, str]]) -> list[str]:
    arguments = ", ".join(f"{name}: {kind}" for name, kind in fields)
    return [f"    def __init__(self, {arguments}) -> None:"] + [f"        self._{name} = {name}" for name, _ in fields]


def _accessor_class(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(3, 6))
    is_documented = random.random() < 0.6
    lines = [f"class {title(noun)}:"]
    if is_documented:
        lines += [
            f'    """A {noun.replace("_", " ")} with {" and ".join(name for name, _ in fields[:2])}."""',
            "",
        ]
    lines += _initializer(fields)
    for name, kind in fields:
        lines += ["", f"    def get_{name}(self) -> {kind}:"]
        lines += [f'        """Return the {name}."""'] if is_documented else []
        lines += [f"        return self._{name}", "", f"    def set_{name}(self, value: {kind}) -> None:"]
        lines += [f'        """Set the {name}."""'] if is_documented else []
        lines += [f"        self._{name} = value"]
    return "\n".join(lines)


def _property_class(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(3, 5))
    is_writable = random.random() < 0.5
    lines = [f"class {title(noun)}:", *_initializer(fields)]
    for name, kind in fields:
        lines += ["", "    @property", f"    def {name}(self) -> {kind}:", f"        return self._{name}"]
        if is_writable:
            lines += ["", f"    @{name}.setter", f"    def {name}(self, value: {kind}) -> None:"]
            if kind in ("int", "float"):
                lines += [
                    "        if value < 0:",
                    f'            raise ValueError("{name} must not be negative")',
                ]
            lines += [f"        self._{name} = value"]
    return "\n".join(lines)


def _record_class(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(3, 7))
    is_frozen = random.random() < 0.4
    lines = [
        "from dataclasses import dataclass",
        "",
        "",
        "@dataclass(frozen=True)" if is_frozen else "@dataclass",
    ]
    lines += [f"class {title(noun)}:", *(f"    {name}: {kind}" for name, kind in fields), ""]
    lines += ["    def to_dict(self) -> dict[str, object]:", "        return {"]
    lines += [f'            "{name}": self.{name},' for name, _ in fields]
    lines += [
        "        }",
        "",
        "    @classmethod",
        f'    def from_dict(cls, data: dict[str, object]) -> "{title(noun)}":',
    ]
    lines += ["        return cls("]
    lines += [f'            {name}={kind}(data["{name}"]),' for name, kind in fields]
    return "\n".join([*lines, "        )"])


def _table(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(3, 4))
    lines = [f"{noun.upper()}S = ["]
    for row in range(random.randint(4, 9)):
        values = ", ".join(f'"{name}": {literal(random, kind)}' for name, kind in fields)
        lines += [f'    {{"id": {row + 1}, {values}}},']
    lines += ["]", "", "", f"def find_{noun}({noun}_id: int) -> dict[str, object] | None:"]
    lines += [
        f'    """Return the {noun.replace("_", " ")} with this id, or None."""',
        f"    for row in {noun.upper()}S:",
    ]
    return "\n".join([*lines, f'        if row["id"] == {noun}_id:', "            return row", "    return None"])


def _tests(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(4, 7))
    lines = []
    if random.random() < 0.5:
        lines += ["import unittest", "", "", f"class Test{title(noun)}(unittest.TestCase):"]
        lines += ["    def setUp(self) -> None:", f"        self.{noun} = {title(noun)}()"]
        for name, kind in fields:
            value = literal(random, kind)
            lines += ["", f"    def test_{name}(self) -> None:", f"        self.{noun}.{name} = {value}"]
            lines += [f"        self.assertEqual(self.{noun}.{name}, {value})"]
        return "\n".join(lines)
    lines += [f"from {noun} import {title(noun)}"]
    for name, kind in fields:
        value = literal(random, kind)
        lines += [
            "",
            "",
            f"def test_{noun}_keeps_its_{name}() -> None:",
            f"    {noun} = {title(noun)}({name}={value})",
        ]
        lines += [f"    assert {noun}.{name} == {value}"]
    return "\n".join(lines)


def _parser(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(3, 6))
    lines = ["import argparse", "", "", "def parse_arguments() -> argparse.Namespace:"]
    lines += [f'    parser = argparse.ArgumentParser(description="{random.choice(VERBS).title()} a {noun}.")']
    for name, kind in fields:
        flag = name.replace("_", "-")
        if kind == "bool":
            lines += [f'    parser.add_argument("--{flag}", action="store_true", help="whether it is {name}")']
        else:
            default = literal(random, kind)
            lines += [f'    parser.add_argument("--{flag}", type={kind}, default={default}, help="the {name}")']
    lines += [
        "    return parser.parse_args()",
        "",
        "",
        "def main() -> None:",
        "    arguments = parse_arguments()",
    ]
    lines += [f'    print("{name}:", arguments.{name})' for name, _ in fields]
    return "\n".join([*lines, "", "", 'if __name__ == "__main__":', "    main()"])


def _dispatcher(random: Random) -> str:
    noun, verbs = draw_noun(random), random.sample(VERBS, random.randint(4, 7))
    lines = [f"def handle_{noun}(command: str, {noun}: {title(noun)}) -> str:"]
    for index, verb in enumerate(verbs):
        lines += [f'    {"el" if index else ""}if command == "{verb}":', f"        {noun}.{verb}()"]
        lines += [f'        return "{verb} done"']
    lines += ['    raise ValueError(f"unknown command: {command}")', "", "", "COMMANDS = {"]
    lines += [f'    "{verb}": {noun}_{verb},' for verb in verbs]
    return "\n".join([*lines, "}"])


def _service(random: Random) -> str:
    noun, others = draw_noun(random), random.sample(NOUNS, random.randint(3, 5))
    lines = [f"class {title(noun)}Service:"]
    lines += [f'    """Keeps the {", ".join(other + "s" for other in others[:-1])} and {others[-1]}s."""', ""]
    lines += [
        "    def __init__(self) -> None:",
        *(f"        self.{other}s: list[str] = []" for other in others),
    ]
    for other in others:
        lines += [
            "",
            f"    def add_{other}(self, {other}: str) -> None:",
            f"        self.{other}s.append({other})",
        ]
        lines += [
            "",
            f"    def remove_{other}(self, {other}: str) -> None:",
            f"        if {other} in self.{other}s:",
        ]
        lines += [f"            self.{other}s.remove({other})"]
        lines += ["", f"    def count_{other}s(self) -> int:", f"        return len(self.{other}s)"]
    return "\n".join(lines)


def _enumeration(random: Random) -> str:
    noun, members = draw_noun(random), random.sample(NOUNS, random.randint(4, 8))
    lines = ["from enum import Enum", "", "", f"class {title(noun)}Kind(Enum):"]
    lines += [f'    {member.upper()} = "{member}"' for member in members]
    lines += ["", "", f"{noun.upper()}_LIMITS = {{"]
    lines += [f"    {title(noun)}Kind.{member.upper()}: {random.randint(1, 99)}," for member in members]
    lines += ["}", "", "", f"def describe_{noun}(kind: {title(noun)}Kind) -> str:"]
    for member in members:
        lines += [
            f"    if kind is {title(noun)}Kind.{member.upper()}:",
            f'        return "{"an" if member[0] in "aeiou" else "a"} {member}"',
        ]
    return "\n".join([*lines, '    return "unknown"'])


def _validator(random: Random) -> str:
    noun, fields = draw_noun(random), draw_fields(random, random.randint(4, 6))
    lines = [f"def validate_{noun}(data: dict[str, object]) -> list[str]:"]
    lines += [
        f'    """Return one message for each wrong field of the {noun.replace("_", " ")}."""',
        "    errors = []",
    ]
    for name, kind in fields:
        lines += [f'    if "{name}" not in data:', f'        errors.append("{name} is missing")']
        lines += [f'    elif not isinstance(data["{name}"], {kind}):']
        lines += [f'        errors.append("{name} must be {kind}")']
    return "\n".join([*lines, "    return errors"])


PROGRAMS: tuple[Callable[[Random], str], ...] = (
    _accessor_class,
    _property_class,
    _record_class,
    _table,
    _tests,
    _parser,
    _dispatcher,
    _service,
    _enumeration,
    _validator,
)


def draw_program(random: Random) -> str:
    """One program of a form drawn evenly, ending in a line break."""
    return random.choice(PROGRAMS)(random) + "\n"
