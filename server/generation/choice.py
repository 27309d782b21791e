"""One choice of a call: turns the worker's replies into deltas of text, parts and log probabilities.

Owns the choice's text, its stop strings and its counts of tokens; knows nothing of HTTP. Invariant: the deltas, joined,
depend on the tokens and not on how they were grouped into replies, and the last delta has the finish reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.core.events import Finished, Traced
from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.worker.calls import Submit
from server.engine_client.replies import Reply
from server.generation.detokenize import IncrementalText, StopStrings
from server.http.errors import unavailable
from server.parsing.parts import Content, Parser, Part, PlainParser, merged
from server.parsing.string_search import SearchTree
from server.prompts.encoding import EncodedPrompt
from server.prompts.tokenizer import Tokenizer

NO_STOPS = SearchTree(())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice before it runs: its request, the prompt to repeat (echo), its stop strings and its parser.

    is_silent: the reply is dropped, because only the prompt's log probabilities were asked for. shows_stop: the stop
    string or stop token that ends the reply is part of its text.
    """

    request: Submit
    echo: EncodedPrompt | None = None
    stops: SearchTree = NO_STOPS
    parser: Parser = field(default_factory=PlainParser)
    shows_special_tokens: bool = False
    shows_stop: bool = False
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a token came from: its `Source` in lower case, its place in its step and the step's number, both from 1."""

    source: str
    depth: int
    step: int


@dataclass(frozen=True, slots=True)
class TokenNews:
    """A token of the reply. offset: where its text begins in the choice's text, an echoed prompt included.

    text: what it adds to the decoded text, though a stop string may cut it off again; cut: the end of it that one has
    cut off; origin: None unless traced; is_shown: false for the end token, and where all of its text is cut off.
    """

    logprobs: TokenLogprobs
    offset: int
    text: str = ""
    cut: str = ""
    origin: Origin | None = None
    is_shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """What is new in one choice. num_tokens, num_reasoning: its completion tokens so far, and those spent on reasoning.

    token_ids: the new completion tokens, whose text may come in a later delta; news: an entry for each completion token
    whose text is now final and in a part, where log probabilities or traces were asked for; steps: those since the last
    delta, where they are traced. finish_reason, stats and the stop_string that ended the reply are in the last delta
    only; prompt_logprobs are in the first only.
    """

    index: int
    parts: tuple[Part, ...]
    num_tokens: int
    num_reasoning: int = 0
    token_ids: Sequence[int] = ()
    news: Sequence[TokenNews] = ()
    steps: Sequence[Traced] = ()
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_string: str | None = None
    stats: RequestStats | None = None


class Choice:
    """Turns the replies of one request into deltas."""

    def __init__(self, index: int, plan: ChoicePlan, tokenizer: Tokenizer) -> None:
        self.index = index
        self._is_silent = plan.is_silent
        self._parser = plan.parser
        self._text = IncrementalText(
            lambda token_ids: tokenizer.decode(token_ids, not plan.shows_special_tokens), plan.request.prompt
        )
        self._stops = StopStrings(plan.stops, plan.shows_stop)
        self._shows_stop = plan.shows_stop
        sampling = plan.request.sampling
        self._min_tokens = sampling.min_tokens
        is_plain = isinstance(plan.parser, PlainParser) and sampling.logprobs is None
        self._is_one_by_one = not plan.stops.is_empty or tokenizer.has_byte_tokens or not is_plain
        self._prefix = "" if plan.echo is None else plan.echo.text
        self._num_read = self._num_settled = len(self._prefix)  # characters decoded, and those no stop can cut off
        self._num_tokens = self._num_reasoning = 0
        self._token_ids: list[int] = []  # not yet in a delta
        self._pending: deque[TokenNews] = deque()  # tokens whose text is not final
        self._origins: deque[Origin] = deque()  # origins of the tokens to come
        self._steps: list[Traced] = []
        self._last_step = 0  # the step of the last token read
        self._prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
        self.is_cut = False  # a stop string or the parser has ended the reply; later tokens are dropped

    def feed(self, reply: Reply, finished: Finished | None) -> ChoiceDelta | None:
        """The delta that this reply makes; None where nothing is new."""
        token_ids = [] if self.is_cut or self._is_silent else reply.token_ids
        stop_token = None
        if finished is not None and finished.stop_token_id is not None and token_ids:
            assert token_ids[-1] == finished.stop_token_id, (token_ids, finished)
            stop_token = None if self._shows_stop else token_ids.pop()
        if reply.prompt_logprobs is not None:
            self._prompt_logprobs = reply.prompt_logprobs
        self._expect(reply.steps)
        parts = self._parser.push(self._prefix)
        self._prefix = ""
        parts += self._append(token_ids, reply.logprobs)
        end: TokenLogprobs | None = None
        if stop_token is not None and not self.is_cut:
            self._num_tokens += 1
            self._token_ids.append(stop_token)
            end = reply.logprobs[-1] if reply.logprobs else None
        if finished is not None:
            return self._last(parts, finished, end)
        return self._delta(parts)

    def _delta(self, parts: list[Part]) -> ChoiceDelta | None:
        shown, news = merged(parts), self._settled_news(is_end=False)
        if not (shown or news):
            return None
        return ChoiceDelta(
            index=self.index,
            parts=shown,
            num_tokens=self._num_tokens,
            num_reasoning=self._num_reasoning,
            token_ids=self._take_token_ids(),
            news=news,
            steps=self._take_steps(),
            prompt_logprobs=self._take_prompt_logprobs(),
        )

    def _expect(self, steps: Sequence[Traced]) -> None:
        """Remember the origins of these steps' tokens."""
        self._steps += steps
        for step in steps:
            sources = enumerate(step.trace.sources, start=1)
            self._origins.extend(Origin(source, depth, step.trace.number) for depth, source in sources)

    def _append(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[Part]:
        if not self._is_one_by_one:
            self._num_tokens += len(token_ids)
            self._token_ids += token_ids
            return self._read(self._text.push(token_ids)) if token_ids else []
        parts: list[Part] = []
        for position, token_id in enumerate(token_ids):
            self._num_tokens += 1
            self._token_ids.append(token_id)
            self._num_reasoning += self._parser.is_reasoning
            text = self._text.push((token_id,))
            if logprobs:
                origin = self._take_origin()
                self._last_step = origin.step if origin else 0
                self._pending.append(TokenNews(logprobs[position], self._num_read, text, origin=origin))
            parts += self._read(text)
            if self.is_cut:
                break
        return parts

    def _read(self, text: str) -> list[Part]:
        """The parts that new text completes."""
        self._num_read += len(text)
        parts = self._stopped(merged(self._parser.push(text)))
        self._settle()
        self.is_cut = self.is_cut or self._parser.is_done
        return parts

    def _settle(self) -> None:
        self._num_settled = self._num_read - self._parser.num_held - self._stops.num_withheld

    def _stopped(self, parts: Sequence[Part]) -> list[Part]:
        """The same parts up to a stop string, which only what is said can have: no thought and no call."""
        shown: list[Part] = []
        for part in parts:
            if not isinstance(part, Content):
                shown += [Content(self._stops.flush()), part]
            elif self._num_tokens < self._min_tokens:
                shown.append(part)
            else:
                text, is_found = self._stops.push(part.text)
                shown.append(Content(text))
                if is_found:
                    self.is_cut = True
                    break
        return shown

    def _settled_news(self, is_end: bool) -> list[TokenNews]:
        """Tokens whose text is final; at the end, all tokens."""
        news = []
        while self._pending:
            token, num_final = self._pending[0], self._num_settled - self._pending[0].offset
            if num_final < max(len(token.text), 1) and not is_end:
                break
            if self.is_cut and num_final < max(len(token.text), 1):
                token = replace(token, cut=token.text[max(num_final, 0) :], is_shown=num_final > 0)
            news.append(token)
            self._pending.popleft()
        return news

    def _take_token_ids(self) -> Sequence[int]:
        taken, self._token_ids = self._token_ids, []
        return taken

    def _take_origin(self) -> Origin | None:
        return self._origins.popleft() if self._origins else None

    def _take_steps(self) -> Sequence[Traced]:
        """The steps since the last delta, without those after the step in which the reply was cut."""
        taken, self._steps = self._steps, []
        return [step for step in taken if step.trace.number <= self._last_step or not self.is_cut]

    def _take_prompt_logprobs(self) -> Sequence[TokenLogprobs | None] | None:
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    def _last(self, parts: list[Part], finished: Finished, end: TokenLogprobs | None) -> ChoiceDelta:
        """The last delta. end: the end token's log probabilities, where they are reported."""
        if not self.is_cut and not self._is_silent:
            text = self._text.flush()
            if text and self._pending:
                self._pending[-1] = replace(self._pending[-1], text=self._pending[-1].text + text)
            parts += self._read(text)
        if end is not None:
            self._pending.append(TokenNews(end, self._num_read, origin=self._take_origin(), is_shown=False))
        if self._stops.found is None:  # else what the parser holds came after it
            is_cut = finished.reason == "length" and not self.is_cut
            parts += self._stopped(merged(self._parser.flush(is_cut)))
            parts.append(Content(self._stops.flush()))
            self._settle()
        reason = "length" if self._is_silent else "stop" if self.is_cut else finished.reason
        if reason == "abort":
            raise unavailable("The request was aborted.", "aborted")
        return ChoiceDelta(
            index=self.index,
            parts=merged(parts),
            num_tokens=self._num_tokens,
            num_reasoning=self._num_reasoning,
            token_ids=self._take_token_ids(),
            news=self._settled_news(is_end=True),
            steps=self._take_steps(),
            prompt_logprobs=self._take_prompt_logprobs(),
            finish_reason=reason,
            stop_string=self._stops.found,
            stats=finished.stats,
        )
