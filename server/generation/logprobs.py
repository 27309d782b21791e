"""Log probabilities in the reply formats of completions and of chats, and in vLLM's format of prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, cast

import msgspec

from decoding.core.token_logprobs import TokenLogprobs
from server.generation.choice import ChoicePlan, TokenNews
from server.generation.detokenize import IncrementalText
from server.prompts.encoding import EncodedPrompt
from server.prompts.tokenizer import Tokenizer
from server.schemas.chat import TokenLogprob, TopLogprob
from server.schemas.completions import CompletionLogprobs
from server.schemas.replies import PromptLogprob, PromptLogprobs

LEAST = -9999.0  # JSON has no minus infinity


T = TypeVar("T")


def written(part: T) -> T:
    """A part of a reply as the JSON that it becomes: a reply of a million entries is never a million objects at once,
    which the garbage collector would visit again and again while the event loop stands still."""
    return cast("T", msgspec.Raw(msgspec.json.encode(part)))


def token_text(data: bytes) -> str:
    """A token as text; bytes that are not whole characters are spelled out as OpenAI does: bytes:\\xe2\\x82."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(logprob: float) -> float:
    return max(logprob, LEAST)


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How replies name a token: by its text, or as token_id:ID, which distinguishes tokens of the same text."""

    tokenizer: Tokenizer
    are_ids: bool = False

    def of(self, token_id: int) -> str:
        return self.of_bytes(token_id, self.tokenizer.token_bytes(token_id))

    def of_bytes(self, token_id: int, data: bytes) -> str:
        """data: what is left of the token's bytes."""
        return f"token_id:{token_id}" if self.are_ids else token_text(data)

    def is_special(self, token_id: int) -> bool:
        return (self.tokenizer.name_of(token_id) or "") in self.tokenizer.special_tokens


def completion_logprobs(names: TokenNames, news: Sequence[TokenNews | None], first: str = "") -> CompletionLogprobs:
    """The format of /v1/completions. None in `news` is the prompt's first token, which has no log probability; `first`
    is its name."""
    form: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in news:
        if token is None:
            form["tokens"].append(first)
            form["token_logprobs"].append(None)
            form["top_logprobs"].append(None)
            form["text_offset"].append(0)
            continue
        entry = token.logprobs
        name = names.of(entry.token_id)
        top = {names.of(token_id): finite(logprob) for token_id, logprob in entry.top[::-1]}
        form["tokens"].append(name)
        form["token_logprobs"].append(finite(entry.logprob))
        form["top_logprobs"].append(written(top | {name: finite(entry.logprob)}))
        form["text_offset"].append(token.offset)
    return form


def with_top(entries: Sequence[TokenLogprobs | None], num_top: int) -> list[TokenLogprobs | None]:
    """The entries with no more than `num_top` likely tokens each."""
    return [None if entry is None else msgspec.structs.replace(entry, top=entry.top[:num_top]) for entry in entries]


def prompt_news(
    tokenizer: Tokenizer, prompt: EncodedPrompt, entries: Sequence[TokenLogprobs | None]
) -> list[TokenNews | None]:
    """An entry for each token of an echoed prompt, with its offset; None for one without log probability."""
    text = IncrementalText(lambda token_ids: tokenizer.decode(token_ids, not prompt.shows_special_tokens))
    offsets = [0] * (prompt.num_added + 1)
    for token_id in prompt.token_ids[prompt.num_added :]:
        offsets.append(offsets[-1] + len(text.push((token_id,))))
    return [
        None if entry is None else TokenNews(entry, offset)
        for entry, (offset, _) in zip(entries, pairwise(offsets), strict=True)
    ]


def said_logprobs(
    names: TokenNames, news: Sequence[TokenNews], plan: ChoicePlan, is_whole: bool = False
) -> list[TokenLogprob]:
    """The entries of chats and responses, whose bytes, joined, are those of the text: there is none for the end token,
    for a special token that the text leaves out, and for what a stop string cut off.

    is_whole: every token has its entry, as also where the plan shows what ended the reply.
    """
    if is_whole or plan.shows_stop:
        return [_token_logprob(names, token.logprobs) for token in news]
    hides_special = not plan.shows_special_tokens
    return [
        _token_logprob(names, token.logprobs, token.cut)
        for token in news
        if token.is_shown and not (hides_special and names.is_special(token.logprobs.token_id))
    ]


def _token_logprob(names: TokenNames, entry: TokenLogprobs, cut: str = "") -> TokenLogprob:
    """cut: the end of the token's text that is left out."""
    data = names.tokenizer.token_bytes(entry.token_id)
    top = [_top(names, token_id, logprob, names.tokenizer.token_bytes(token_id)) for token_id, logprob in entry.top]
    own = _top(names, entry.token_id, entry.logprob, data[: len(data) - len(cut.encode())])
    whole: TokenLogprob = {**own, "top_logprobs": top}
    return written(whole)


def _top(names: TokenNames, token_id: int, logprob: float, data: bytes) -> TopLogprob:
    return {"token": names.of_bytes(token_id, data), "logprob": finite(logprob), "bytes": list(data)}


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """vLLM's format: for each prompt token its likeliest alternatives and itself, by id; None for the first token."""
    return [None if entry is None else _prompt_entry(tokenizer, entry) for entry in entries]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, PromptLogprob]:
    ranked = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, start=1)]
    likely: dict[str, PromptLogprob] = {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": token_text(tokenizer.token_bytes(token_id)),
        }
        for token_id, logprob, rank in [*ranked, (entry.token_id, entry.logprob, entry.rank)]
    }
    return written(likely)
