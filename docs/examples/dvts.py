"""Diverse verifier tree search as a client of the server: `python dvts.py "Question: ..."`.

Several subtrees grow side by side (Beeching et al., 2024). Each is given a few continuations up to the next blank
line, the model itself judges them, and the best one stays. All calls share a session, so that what one
continuation taught the drafter helps the next; the answers are those of undrafted decoding.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field

from openai import OpenAI

JUDGE = "\n\nIs the last step right? Answer yes or no:"


@dataclass
class Search:
    """One problem. width: continuations of a step; votes: times the model is asked about one."""

    client: OpenAI
    model: str
    width: int
    votes: int
    temperature: float
    step_end: str
    session: str = field(default_factory=lambda: f"dvts-{uuid.uuid4().hex}")
    accepted: int = 0
    emitted: int = 0

    def sample(self, prompt: str, n: int, max_tokens: int, seed: int) -> list[str]:
        """`n` continuations of `prompt`, none with the step's end."""
        reply = self.client.completions.create(
            model=self.model,
            prompt=prompt,
            n=n,
            max_tokens=max_tokens,
            temperature=self.temperature,
            seed=seed,
            stop=[self.step_end],
            extra_body={"session_id": self.session, "speculation": {"method": "stand"}},
        )
        if reply.usage and reply.usage.completion_tokens_details:
            self.accepted += reply.usage.completion_tokens_details.accepted_prediction_tokens or 0
            self.emitted += reply.usage.completion_tokens
        return [choice.text for choice in reply.choices]

    def judge(self, text: str, seed: int) -> float:
        """The share of the model's verdicts on a text's last step that say yes."""
        verdicts = self.sample(text + JUDGE, self.votes, 3, seed)
        return sum(verdict.strip().lower().startswith("yes") for verdict in verdicts) / len(verdicts)

    def grow(self, prompt: str, subtree: int, max_steps: int, max_tokens: int) -> str:
        """One subtree's reply, step by step, each the best judged of `width` continuations."""
        text = ""
        for step in range(max_steps):
            seed = 1_000_000 * subtree + 1000 * step
            options = self.sample(prompt + text, self.width, max_tokens, seed)
            if not any(options):
                break
            scored = [(self.judge(prompt + text + option, seed + 1), -place) for place, option in enumerate(options)]
            text += options[-max(scored)[1]] + self.step_end
        return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Diverse verifier tree search.")
    add = parser.add_argument
    add("question")
    add("--url", default="http://127.0.0.1:8000/v1")
    add("--model", default="gosling")
    add("--subtrees", type=int, default=4)
    add("--width", type=int, default=4)
    add("--votes", type=int, default=4)
    add("--steps", type=int, default=8)
    add("--max-tokens", type=int, default=120, help="of one step")
    add("--temperature", type=float, default=0.6)
    add("--step-end", default="\n\n", help="what ends a step")
    chosen = parser.parse_args()
    client = OpenAI(base_url=chosen.url, api_key="none")
    search = Search(client, chosen.model, chosen.width, chosen.votes, chosen.temperature, chosen.step_end)
    replies = [
        search.grow(chosen.question, subtree, chosen.steps, chosen.max_tokens) for subtree in range(chosen.subtrees)
    ]
    last_lines = Counter(reply.strip().rpartition("\n")[2] for reply in replies)
    answer, count = last_lines.most_common(1)[0]
    sys.stdout.write(f"{answer}\n({count} of {len(replies)} subtrees; {search.accepted} of {search.emitted} drafted)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
