"""Compares our engine with others on the same weights: `gander bench peers`.

Owns the choice of peers and the console. Each engine, ours included, runs in its own process, in rounds.
Invariant: a setting is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer
from transformers import AutoConfig

from decoding.bench.machine import describe_machine
from decoding.bench.peers.folders import draft_folder, random_folder, widened_folder
from decoding.bench.peers.gate import IdleGate, MachineBusy
from decoding.bench.peers.gguf_asks import GgufAsks
from decoding.bench.peers.options import ADAPTERS, GGUF, MAX_PROMPT_LEN, WINDOW_LEN, parse
from decoding.bench.peers.peer_process import PeerFailed, PeerMissing, PeerOptions, PeerProcess
from decoding.bench.peers.perplexity import score
from decoding.bench.peers.rounds import Ask, Rounds, Setting
from decoding.bench.peers.tables import num_differing, render_drafted, render_perplexity, render_plain
from decoding.bench.tables.report import Report, command_line
from decoding.bench.workload import PromptChoice, load_workloads
from decoding.config import BUNDLED_MODEL
from decoding.core.files.output import claim_folder
from decoding.model.checkpoint import folder_of
from decoding.training.public_prompts import PROMPT_SETS, read_prompts

MARGIN = 64  # tokens of room after prompt and reply, for drafts past the end


class Contenders(NamedTuple):
    """The peers that take part: adapters and interpreters by the peer's name."""

    adapters: dict[str, Path]
    interpreters: dict[str, str]

    @contextmanager
    def started(self, options: PeerOptions) -> Iterator[tuple[dict[str, PeerProcess], list[str]]]:
        """Start the peers: those that load, and a sentence for each that does not."""
        with ExitStack() as stack:
            running, left_out = dict[str, PeerProcess](), list[str]()
            for name, adapter in self.adapters.items():
                try:
                    process = PeerProcess(adapter, self.interpreters.get(name, sys.executable), options)
                except PeerMissing as error:
                    left_out.append(f"{name} is left out, since it is not installed: {error}")
                except PeerFailed as error:
                    left_out.append(f"{name} is left out: {error}")
                else:
                    running[name] = stack.enter_context(process)
            yield running, left_out


class PeersComparison:
    """One call of the command. cache: a folder for models."""

    def __init__(
        self, chosen: argparse.Namespace, contenders: Contenders, command: str, console: Console, cache: Path
    ) -> None:
        self.chosen = chosen
        self.contenders = contenders
        self.console = console
        self.cache = cache
        self.gate = IdleGate(chosen.patience, chosen.busy)
        threads = "thread" if chosen.threads == 1 else "threads"
        self.report = Report(chosen.out, f"{describe_machine()}, {chosen.threads} {threads}", command, page="peers")
        self.asks = GgufAsks(chosen.gguf) if chosen.gguf else None
        self.num_differing = 0

    def run(self) -> int:
        """Measure the chosen parts; return 1 if the machine was never idle, or a drafted reply of ours is not the plain
        one."""
        measure: dict[str, Callable[[], None]] = {
            "plain": self.plain,
            "drafted": self.drafted,
            "perplexity": self.perplexity,
        }
        try:
            for part in self.chosen.parts:
                measure[part]()
        except MachineBusy as error:
            self.console.print(f"Not measured: {error}.", soft_wrap=True)
            return 1
        return int(self.num_differing > 0)

    def plain(self) -> None:
        """Measure plain decoding: random prompts and replies of the full length."""
        chosen, found = self.chosen, list[Setting]()
        if self.asks is not None:
            folder, dtypes, vocab_size = chosen.gguf, (GGUF,), self.asks.vocab_size
        else:
            folder, dtypes = chosen.model or random_folder(self.cache), chosen.dtypes
            vocab_size = AutoConfig.from_pretrained(folder).get_text_config().vocab_size
        numbers = np.random.default_rng(0).integers(3, vocab_size, (chosen.rounds, chosen.prompt_len))
        ask = Ask(prompts=numbers.tolist(), max_tokens=chosen.max_tokens, end_tokens=[])
        for dtype in dtypes:
            with self.contenders.started(self._options(folder, dtype)) as (running, left_out):
                found.append(self._measure(self._named(dtype), ask, running, left_out, plain_only=True))
            self._write("plain", render_plain(found), found)

    def drafted(self) -> None:
        """Measure each way of drafting of each peer, on chats with a GGUF file or on the bundled model's skills."""
        found = list[Setting]()
        options, asked = self._skills() if self.asks is None else self._chats(self.asks)
        with self.contenders.started(options) as (running, left_out):
            for name, ask in asked:
                found.append(self._measure(self._named(name), ask, running, left_out, plain_only=False))
                self._write("drafted", render_drafted(found), found)
        self.num_differing = sum(num_differing(setting)[0] for setting in found)

    def perplexity(self) -> None:
        """Score a text by each peer's logits."""
        chosen, console = self.chosen, self.console
        assert self.asks is not None
        windows = self.asks.windows(chosen.text, chosen.text_tokens, WINDOW_LEN)
        contenders = self.contenders.started(self._options(chosen.gguf, GGUF))
        with contenders as (running, left_out), Progress(console=console, transient=True) as bars:
            bar = bars.add_task(f"{chosen.gguf.name}: perplexity", total=len(windows))
            found, failures = score(running, windows, lambda: bars.advance(bar))
        page = render_perplexity(found, [*left_out, *failures])
        console.print(page, soft_wrap=True, markup=False)
        self._write("perplexity", page, found)

    def _chats(self, asks: GgufAsks) -> tuple[PeerOptions, list[tuple[str, Ask]]]:
        """Prompts as chats of the GGUF file's model."""
        chosen = self.chosen
        read = read_prompts(chosen.data, chosen.workloads, chosen.rounds)
        asked = [(name, asks.chats(prompts, chosen.max_tokens)) for name, prompts in read.items()]
        longest = max(len(prompt) for _, ask in asked for prompt in ask.prompts)
        return self._options(chosen.gguf, GGUF, chosen.draft_gguf, longest=longest), asked

    def _skills(self) -> tuple[PeerOptions, list[tuple[str, Ask]]]:
        """Prompts of the bundled model's skills."""
        chosen = self.chosen
        folder = widened_folder(self.cache, chosen.widened)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        choice = PromptChoice(count=chosen.rounds, max_tokens=chosen.max_tokens, max_prompt_len=MAX_PROMPT_LEN)
        end_tokens = AutoConfig.from_pretrained(folder_of(BUNDLED_MODEL)).eos_token_id
        asked = []
        for workload in load_workloads(chosen.workloads, tokenizer, choice, self.console.print):
            prompts = [prompt.tolist() for prompt in workload.prompts]
            asked.append((workload.name, Ask(prompts=prompts, max_tokens=chosen.max_tokens, end_tokens=end_tokens)))
        return self._options(folder, chosen.drafted_dtype, draft_folder(), BUNDLED_MODEL), asked

    def _named(self, setting: str) -> str:
        """The setting's name in tables, with the GGUF file's and its draft model's."""
        chosen = self.chosen
        if chosen.gguf is None:
            return setting
        files = " + ".join(path.name for path in (chosen.gguf, chosen.draft_gguf) if path)
        return files if setting == GGUF else f"{files}, {PROMPT_SETS[setting].title}"

    def _write(self, part: str, markdown: str, figures: object) -> None:
        """Write a part's section, of which each GGUF file has its own."""
        name = "" if self.chosen.gguf is None else re.sub(r"[^\w.]+", "-", self._named(GGUF)) + " "
        self.report.write(f"{name}{part}", markdown, figures)

    def _measure(
        self, name: str, ask: Ask, running: dict[str, PeerProcess], left_out: Sequence[str], plain_only: bool
    ) -> Setting:
        with self.console.status(f"{name}: {', '.join(running)}"):
            setting = Rounds(self.gate, ask).measure(name, running, plain_only, left_out)
        for sentence in setting.left_out:
            self.console.print(f"{name}: {sentence}", soft_wrap=True, markup=False)
        return setting

    def _options(
        self,
        model: Path,
        dtype: str,
        draft_model: Path | None = None,
        draft_head: str | None = None,
        longest: int = MAX_PROMPT_LEN,
    ) -> PeerOptions:
        """longest: tokens of a prompt."""
        chosen = self.chosen
        return PeerOptions(
            model=str(model),
            draft_model=str(draft_model) if draft_model else None,
            draft_head=draft_head,
            dtype=dtype,
            threads=chosen.threads,
            max_len=max(chosen.prompt_len, longest) + chosen.max_tokens + MARGIN,
            cache=str(self.cache),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen, command = parse(given), command_line("gander bench peers", given)
    contenders = Contenders({name: ADAPTERS[name] for name in chosen.peers}, dict(chosen.interpreter))
    if chosen.cache is not None:
        claim_folder(chosen.cache)
        return PeersComparison(chosen, contenders, command, Console(), chosen.cache.absolute()).run()
    with tempfile.TemporaryDirectory(prefix="gander-peers-") as cache:
        return PeersComparison(chosen, contenders, command, Console(), Path(cache)).run()


if __name__ == "__main__":
    sys.exit(main())
