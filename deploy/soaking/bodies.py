"""The requests of a soak: ones with known replies, invalid ones, and malicious ones. Pure data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = (
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n",
    "Question: Tom has 12 apples and buys 7 more. How many apples does he have?\nAnswer:",
    "Once upon a time there was a fox who had three friends and lived near a river.",
)
METHODS = ("auto", "spine", "stand", "dynamic", "none")
SAMPLED = {"temperature": 0.9, "top_p": 0.95}
SCHEMA = {"type": "array", "items": {"enum": ["one", "two", "three"]}, "minItems": 4, "maxItems": 8}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. codes: the errors that may answer it, none where it must get a whole reply. Without a worker the
    server may answer any request with 503."""

    path: str
    body: bytes
    codes: frozenset[str] = frozenset()


def replies() -> list[Ask]:
    """Streams whose text depends on the body alone."""
    asked = []
    for number, prompt in enumerate(PROMPTS):
        for method in METHODS:
            body: dict[str, Any] = {"prompt": prompt, "speculation": {"method": method}, "seed": number}
            asked.append(_stream(body | {"temperature": 0, "max_tokens": 48, "ignore_eos": True}))
            asked.append(_stream(body | SAMPLED | {"max_tokens": 32}))
    grammar = {"prompt": PROMPTS[1], "structured_outputs": {"json": SCHEMA}, "seed": 3, "max_tokens": 60}
    penalties = {"prompt": PROMPTS[0], "frequency_penalty": 0.5, "stop": ["pop", "zzz"], "seed": 4, "max_tokens": 40}
    return [
        *asked,
        _stream(grammar | SAMPLED),
        _stream(penalties | SAMPLED),
        _stream({"prompt": PROMPTS[2] * 40, "temperature": 0}),
    ]


def mistakes() -> list[Ask]:
    """Invalid bodies, as clients send them by mistake."""
    return [
        _wrong(COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "unsupported_parameter"),
        _wrong(COMPLETIONS, {"prompt": "a", "temperature": -1}, "invalid_value"),
        _wrong(COMPLETIONS, {"prompt": "a", "model": "other"}, "model_not_found"),
        _wrong(COMPLETIONS, {"prompt": "a " * 100_000}, "context_length_exceeded"),
        _wrong(COMPLETIONS, {"prompt": "a" * 5 * 2**20}, "body_too_large"),
        _wrong(CHAT, {}, "missing_required_parameter"),
        Ask(CHAT, b"{", frozenset({"invalid_json"})),
        Ask(COMPLETIONS, b"[" * 100_000, frozenset({"invalid_json", "above_limit"})),
        Ask("/v1/nowhere", b"{}", frozenset({"not_found"})),
    ]


def bombs() -> list[Ask]:
    """Bodies made to use up time or memory. The server refuses them, or answers within bounded time and memory."""
    hello = [{"role": "user", "content": "hello"}]
    rule = {"grammar": 'start: a{1000000}\na: "x"'}
    lexemes = {"grammar": "start: " + "|".join(f"/[a-z]+{number:x}/" for number in range(4000))}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"structured_outputs": {"regex": "(x{1,1000}){1,1000}"}, "temperature": 1, "max_tokens": 100}),
        (COMPLETIONS, {"structured_outputs": rule, "speculation": {"method": "spine", "max_nodes": 8}}),
        (COMPLETIONS, {"structured_outputs": {"json": {"multipleOf": 999983}}, "n": 8}),
        (COMPLETIONS, {"structured_outputs": lexemes}),
        (COMPLETIONS, {"prediction": {"type": "content", "content": "x y " * 500_000}, "max_tokens": 8, "n": 4}),
        (COMPLETIONS, {"stop": ["a" * 255 + letter for letter in "bcdefghijklmnop"], "max_tokens": 32}),
        (CHAT, {"messages": hello, "chat_template": "{{ 'a' * 10 ** 10 }}", "max_tokens": 4}),
        (CHAT, {"messages": hello, "chat_template": "{{ range(99999) | map('string') | join | length }}"}),
    ]
    codes = frozenset({"invalid_grammar", "broken_grammar", "invalid_template", "above_limit"})
    prompt: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "x"}, CHAT: {}}
    return [Ask(path, json.dumps(prompt[path] | {"max_tokens": 8} | body).encode(), codes) for path, body in bodies]


def _stream(body: dict[str, Any]) -> Ask:
    return Ask(COMPLETIONS, json.dumps({"max_tokens": 16} | body | {"stream": True}).encode())


def _wrong(path: str, body: dict[str, Any], code: str) -> Ask:
    return Ask(path, json.dumps(body).encode(), frozenset({code}))
