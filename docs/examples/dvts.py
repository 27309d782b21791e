"""Diverse verifier tree search as a client of the server: `python dvts.py "Question: ..."`.

Several subtrees grow side by side (Beeching et al., 2024). In each step a subtree gets a few continuations up to the
next blank line, the model itself rates them, and the best one stays. All calls of a search share a session, so that the
drafter learns from each continuation for the next; the answers are those of undrafted decoding. With `--questions FILE`
(JSON lines of {"prompt", "reference"}, references ending in `#### number`) and several `--methods` it prints a table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openai import OpenAI

JUDGE = "\n\nIs the last step right? Answer yes or no:"
ANSWER = re.compile(r"^#### *(-?\d+)\s*$", re.MULTILINE)


@dataclass
class Search:
    """How to search, and what it cost. width: continuations a step; votes: how often the model rates each; steps: of
    one subtree, at most `max_tokens` tokens each; nodes: drafted nodes a step, None leaves them to the server;
    finished: a text that matches this is complete."""

    client: OpenAI
    model: str
    method: str
    width: int = 4
    votes: int = 4
    steps: int = 8
    max_tokens: int = 120
    temperature: float = 0.6
    nodes: int | None = None
    step_end: str = "\n\n"
    finished: re.Pattern[str] = ANSWER
    session: str = field(default_factory=lambda: f"dvts-{uuid.uuid4().hex}")
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0

    def sample(self, prompt: str, n: int, max_tokens: int, seed: int) -> list[str]:
        """`n` continuations of `prompt`, none with the step's end."""
        started = time.perf_counter()
        reply = self.client.completions.create(
            model=self.model,
            prompt=prompt,
            n=n,
            max_tokens=max_tokens,
            temperature=self.temperature,
            seed=seed,
            stop=[self.step_end],
            extra_body={
                "session_id": self.session,
                "speculation": {"method": self.method, "max_nodes": self.nodes, "report": True},
            },
        )
        self.seconds += time.perf_counter() - started
        self.tokens += reply.usage.completion_tokens if reply.usage else 0
        self.forwards += sum(choice.model_dump()["speculation"]["steps"] for choice in reply.choices)
        return [choice.text for choice in reply.choices]

    def judge(self, text: str, seed: int) -> float:
        """The share of the model's votes on a text's last step that say yes."""
        verdicts = self.sample(text + JUDGE, self.votes, 3, seed)
        return sum(verdict.strip().lower().startswith("yes") for verdict in verdicts) / len(verdicts)

    def grow(self, prompt: str, subtree: int) -> str:
        """One subtree's reply: in each step the continuation with the best rating; among equals, the most frequent."""
        text = ""
        for step in range(self.steps):
            seed = 1_000_000 * subtree + 1000 * step
            counts = Counter(option for option in self.sample(prompt + text, self.width, self.max_tokens, seed))
            scores = {
                option: (self.judge(prompt + text + option, seed + 1), count)
                for option, count in counts.items()
                if option.strip()
            }
            if not scores:
                break
            text += max(scores, key=lambda option: scores[option]) + self.step_end
            if self.finished.search(text):
                break
        return text

    def answer(self, prompt: str, subtrees: int) -> tuple[str, int]:
        """The answer with which most subtrees end, and how many do."""
        found = Counter(conclusion(self.grow(prompt, subtree)) for subtree in range(subtrees))
        return found.most_common(1)[0]


def conclusion(text: str) -> str:
    """The number on the answer line, or the last line where there is none."""
    found = ANSWER.search(text)
    return found[1] if found else text.strip().rpartition("\n")[2]


def tabulate(searches: Sequence[Search], problems: Sequence[tuple[str, str]], subtrees: int) -> str:
    """A Markdown row for each search's method; the problems are (prompt, answer)."""
    lines = ["| method | τ | tokens/s | right |", "| --- | --: | --: | --: |"]
    for search in searches:
        right = sum(search.answer(prompt, subtrees)[0] == expected for prompt, expected in problems)
        tau, rate = search.tokens / max(1, search.forwards), search.tokens / search.seconds
        lines.append(f"| {search.method} | {tau:.2f} | {rate:.0f} | {right} of {len(problems)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Diverse verifier tree search.")
    add = parser.add_argument
    add("question", nargs="?")
    add("--questions", type=Path, help="a file of problems, instead of one question")
    add("--url", default="http://127.0.0.1:8000/v1")
    add("--model", default="gosling")
    add("--methods", default="stand", help="comma-separated, one search each")
    add("--subtrees", type=int, default=4)
    add("--width", type=int, default=4)
    add("--votes", type=int, default=4)
    add("--steps", type=int, default=8)
    add("--max-tokens", type=int, default=120, help="of one step")
    add("--temperature", type=float, default=0.6)
    add("--nodes", type=int, help="drafted nodes a step; by default the server decides")
    add("--step-end", default="\n\n", help="what ends a step")
    chosen = parser.parse_args(argv)
    if (chosen.question is None) == (chosen.questions is None):
        parser.error("give a question, or --questions FILE")
    client = OpenAI(base_url=chosen.url, api_key="none")
    shape = {name: getattr(chosen, name) for name in ("width", "votes", "steps", "max_tokens", "temperature", "nodes")}
    searches = [
        Search(client, chosen.model, method, **shape, step_end=chosen.step_end) for method in chosen.methods.split(",")
    ]
    if chosen.questions is not None:
        rows = [json.loads(line) for line in chosen.questions.read_text(encoding="utf-8").splitlines()]
        problems = [(row["prompt"], conclusion(row["reference"])) for row in rows]
        sys.stdout.write(tabulate(searches, problems, chosen.subtrees) + "\n")
        return 0
    for search in searches:
        answer, count = search.answer(chosen.question, chosen.subtrees)
        tau = search.tokens / max(1, search.forwards)
        sys.stdout.write(f"{answer}\n({count} of {chosen.subtrees} subtrees; {search.method}, τ {tau:.2f})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
