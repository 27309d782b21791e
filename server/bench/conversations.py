"""Makes the conversations of a benchmark from a prompt file, or from the bundled model's held-out prompts.

Knows nothing of servers. Invariant: the same arguments give the same conversations, and no prompt is used twice before
every prompt was used once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from decoding.training.texts.prompts import MAX_PROMPTS, MAX_SEED, held_out_prompts
from server.bench.errors import PromptFileError

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """opening: messages before the first turn; turns: what the user says, turn by turn; token_ids: a completion's
    prompt, where it is sent as token ids; pictures: data: URLs, which are shown before the first turn's text."""

    number: int
    opening: tuple[Message, ...]
    turns: tuple[str, ...]
    token_ids: tuple[int, ...] = ()
    pictures: tuple[str, ...] = ()

    def message(self, turn: int) -> Message:
        """What the user says. turn: from 1."""
        text = self.turns[turn - 1]
        if turn > 1 or not self.pictures:
            return {"role": "user", "content": text}
        parts: list[Message] = [{"type": "image_url", "image_url": {"url": url}} for url in self.pictures]
        return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def make_conversations(rows: Sequence[Conversation], count: int, turns: int, prefix: str) -> list[Conversation]:
    """`count` conversations of `turns` turns. A row with fewer turns gets the first turns of the rows after it.

    prefix: a system message with which all of them begin.
    """
    system = ({"role": "system", "content": prefix},) if prefix else ()
    found = []
    for number in range(count):
        here = [rows[(number * turns + turn) % len(rows)] for turn in range(turns)]
        said = (*here[0].turns, *(row.turns[0] for row in here[1:]))[:turns]
        found.append(Conversation(number, (*system, *here[0].opening), said))
    return found


def text_of(messages: Sequence[Message]) -> str:
    """The messages' contents, joined to a completion's prompt."""
    return "\n\n".join(message["content"] for message in messages)


def read_rows(path: Path | None, count: int) -> list[Conversation]:
    """At most `count` rows of a file of JSON lines, each with messages, turns or a prompt; without one, bundled ones.

    Raises PromptFileError for a file without prompts, OSError for one that cannot be read.
    """
    if path is None:
        return [Conversation(number, (), (text,)) for number, text in enumerate(islice(bundled_prompts(), count))]
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    rows = [_row(number, line) for number, line in enumerate(islice(lines, count))]
    if not rows:
        raise PromptFileError(f"{path} has no prompts")
    return rows


def _row(number: int, line: str) -> Conversation:
    try:
        row = json.loads(line)
        if "messages" in row:
            *opening, last = row["messages"]
            return Conversation(number, tuple(opening), (last["content"],))
        return Conversation(number, (), tuple(row["turns"] if "turns" in row else [row["prompt"]]))
    except (ValueError, KeyError, TypeError) as error:
        raise PromptFileError(f"row {number + 1} of the prompt file is not an object with a prompt: {error}") from error


def bundled_prompts() -> Iterator[str]:
    """All held-out prompts, the three skills alternating. Seed 0 is left out, because the model card uses it."""
    return chain.from_iterable(_prompts_of(seed) for seed in range(1, MAX_SEED + 1))


@cache
def _prompts_of(seed: int) -> list[str]:
    skills = [held_out_prompts(skill, MAX_PROMPTS, seed) for skill in ("code", "reasoning", "stories")]
    return list(chain.from_iterable(zip(*skills, strict=True)))


def filler(number: int, characters: int) -> str:
    """Text of at least `characters` characters; each `number` begins with another prompt."""
    found: list[str] = []
    length = 0
    for text in islice(cycle(bundled_prompts()), number, None):
        found.append(text)
        length += len(text)
        if length >= characters:
            break
    return "\n\n".join(found)
