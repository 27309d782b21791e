"""Writes the replies of /v1/completions: the chunks of a stream, and the plain reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from server.engine_client.replies import PromptRun
from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta, TokenNews
from server.generation.events import FoldedChoice, Prompts, progress_comment, prompt_progress
from server.generation.logprobs import TokenNames, completion_logprobs, prompt_logprobs, prompt_news, with_top
from server.generation.report import speculation_report
from server.generation.trace import trace
from server.generation.usage import UsageCount
from server.http.errors import ApiError
from server.http.sse import DONE, EVENTS, StreamForm, frame
from server.parsing.parts import said
from server.schemas.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest


@dataclass(frozen=True, slots=True)
class CompletionSerializer:
    form: ClassVar[StreamForm] = EVENTS
    call: GenerationCall
    body: CompletionRequest
    _begun: set[int] = field(default_factory=set)  # choices whose prompt's ids were sent

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        logprobs = self._logprobs(delta.index, delta.news, delta.prompt_logprobs)
        choice = self._choice(delta.index, said(delta.parts), logprobs, delta.finish_reason, delta.stats)
        self._add_token_ids(choice, delta.token_ids, None if delta.index in self._begun else delta.index)
        self._begun.add(delta.index)
        if self.body.speculation.trace:
            choice["trace"] = trace(self.call.tokenizer, delta.news, delta.steps)
        chunk = self._reply([choice])
        options = self.body.stream_options
        if options.include_usage:
            chunk["usage"] = usage.usage() if options.continuous_usage_stats else None
        yield frame(chunk)

    def silence(self, prompts: Prompts) -> bytes:
        if not (prompts and self.body.return_progress):
            return progress_comment(prompts)
        return b"".join(self._progress_chunk(index, run) for index, run in prompts.items())

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        if isinstance(outcome, ApiError):
            yield frame(outcome.body())
        elif self.body.stream_options.include_usage:
            yield frame(self._reply([]) | {"usage": outcome.usage()})
        yield DONE

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        reply = self._reply([self._whole_choice(i, choice) for i, choice in enumerate(self._best(choices))])
        reply["usage"] = usage.usage()
        return reply

    def _best(self, choices: Sequence[FoldedChoice]) -> list[FoldedChoice]:
        """For each prompt, the n choices with the highest mean log probability, the highest first."""
        num_generated = self.body.best_of or self.body.n
        if num_generated == self.body.n:
            return list(choices)
        best: list[FoldedChoice] = []
        for start in range(0, len(choices), num_generated):
            group = sorted(choices[start : start + num_generated], key=_mean_logprob, reverse=True)
            best += group[: self.body.n]
        return best

    def _whole_choice(self, index: int, choice: FoldedChoice) -> CompletionChoice:
        last = choice.last
        logprobs = self._logprobs(last.index, choice.news, choice.prompt_logprobs)
        whole = self._choice(index, said(choice.parts), logprobs, last.finish_reason, last.stats)
        whole["prompt_logprobs"] = None
        self._add_token_ids(whole, choice.token_ids, last.index)
        if self.body.speculation.trace:
            whole["trace"] = trace(self.call.tokenizer, choice.news, choice.steps)
        if self.body.prompt_logprobs is not None and choice.prompt_logprobs is not None:
            entries = with_top(choice.prompt_logprobs, self.body.prompt_logprobs)
            whole["prompt_logprobs"] = prompt_logprobs(self.call.tokenizer, entries)
        return whole

    def _add_token_ids(self, choice: CompletionChoice, token_ids: Sequence[int], index: int | None) -> None:
        """index: the generated choice whose prompt's ids are added too, None to leave them out."""
        if not self.body.return_token_ids:
            return
        choice["token_ids"] = list(token_ids)
        if index is not None:
            choice["prompt_token_ids"] = self.call.plans[index].request.prompt

    def _logprobs(
        self, index: int, news: Sequence[TokenNews], prompt: Sequence[TokenLogprobs | None] | None
    ) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        tokenizer, echo = self.call.tokenizer, self.call.plans[index].echo
        names = TokenNames(tokenizer, self.body.return_tokens_as_token_ids)
        if echo is None or prompt is None:
            return completion_logprobs(names, news)
        repeated = prompt_news(tokenizer, echo, with_top(prompt, self.body.logprobs))
        return completion_logprobs(names, [*repeated, *news], names.of(echo.token_ids[0]))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        finish_reason: str | None,
        stats: RequestStats | None,
    ) -> CompletionChoice:
        choice: CompletionChoice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        if self.body.speculation.report and stats is not None:
            choice["speculation"] = speculation_report(stats)
        return choice

    def _progress_chunk(self, index: int, run: PromptRun) -> bytes:
        choice = self._choice(index, "", None, None, None)
        return frame(self._reply([choice]) | {"prompt_progress": prompt_progress(run)})

    def _reply(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self.call.id,
            "object": "text_completion",
            "created": self.call.created,
            "model": self.call.model,
            "system_fingerprint": self.call.fingerprint,
            "choices": choices,
        }


def _mean_logprob(choice: FoldedChoice) -> float:
    """The mean of the tokens' natural log probabilities; minus infinity for an empty reply, so that it ranks last."""
    logprobs = [news.logprobs.logprob for news in choice.news]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
