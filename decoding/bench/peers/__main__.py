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

from decoding.bench.machine import describe_machine
from decoding.bench.peers.asks import ModelAsks
from decoding.bench.peers.folders import random_folder
from decoding.bench.peers.gate import IdleGate, MachineBusy
from decoding.bench.peers.options import ADAPTERS, WINDOW_LEN, parse
from decoding.bench.peers.peer_process import PeerFailed, PeerMissing, PeerOptions, PeerProcess
from decoding.bench.peers.perplexity import score
from decoding.bench.peers.rounds import Ask, Rounds, Setting
from decoding.bench.peers.tables import num_differing, render_drafted, render_perplexity, render_plain
from decoding.bench.tables.report import Report, command_line
from decoding.core.files.output import claim_folder
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
        self.model: Path = chosen.model or random_folder(cache)
        self.asks = ModelAsks(self.model)
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
        numbers = np.random.default_rng(0).integers(3, self.asks.vocab_size, (chosen.rounds, chosen.prompt_len))
        ask = Ask(prompts=numbers.tolist(), max_tokens=chosen.max_tokens, end_tokens=[])
        for dtype in chosen.dtypes:
            with self.contenders.started(self._options(dtype, chosen.prompt_len)) as (running, left_out):
                found.append(self._measure(self._named(dtype), ask, running, left_out, plain_only=True))
            self._write("plain", render_plain(found), found)

    def drafted(self) -> None:
        """Measure each way of drafting of each peer on chats."""
        chosen, found = self.chosen, list[Setting]()
        read = read_prompts(chosen.data, chosen.workloads, chosen.rounds)
        asked = {name: self.asks.chats(prompts, chosen.max_tokens) for name, prompts in read.items()}
        longest = max(len(prompt) for ask in asked.values() for prompt in ask.prompts)
        for dtype in chosen.dtypes:
            options = self._options(dtype, longest, chosen.draft_model)
            with self.contenders.started(options) as (running, left_out):
                for name, ask in asked.items():
                    shown = f"{self._named(dtype)}, {PROMPT_SETS[name].title}"
                    found.append(self._measure(shown, ask, running, left_out, plain_only=False))
                    self._write("drafted", render_drafted(found), found)
        self.num_differing = sum(num_differing(setting)[0] for setting in found)

    def perplexity(self) -> None:
        """Score a text by each peer's logits."""
        chosen, console = self.chosen, self.console
        windows = self.asks.windows(chosen.text, chosen.text_tokens, WINDOW_LEN)
        contenders = self.contenders.started(self._options(chosen.dtypes[0], WINDOW_LEN))
        with contenders as (running, left_out), Progress(console=console, transient=True) as bars:
            bar = bars.add_task(f"{self.model.name}: perplexity", total=len(windows))
            found, failures = score(running, windows, lambda: bars.advance(bar))
        page = render_perplexity(found, [*left_out, *failures])
        console.print(page, soft_wrap=True, markup=False)
        self._write("perplexity", page, found)

    def _named(self, dtype: str) -> str:
        """The name of a setting in tables: the model's, with its draft model's, and the kind of weights of a folder."""
        chosen = self.chosen
        if chosen.model is None:
            return dtype
        files = " + ".join(path.name for path in (chosen.model, chosen.draft_model) if path)
        return files if chosen.gguf else f"{files}, {dtype}"

    def _write(self, part: str, markdown: str, figures: object) -> None:
        """Write a part's section, of which each model that was named has its own."""
        files = (self.chosen.model, self.chosen.draft_model)
        name = re.sub(r"[^\w.]+", "-", " + ".join(path.name for path in files if path))
        self.report.write(f"{name} {part}".strip(), markdown, figures)

    def _measure(
        self, name: str, ask: Ask, running: dict[str, PeerProcess], left_out: Sequence[str], plain_only: bool
    ) -> Setting:
        with self.console.status(f"{name}: {', '.join(running)}"):
            setting = Rounds(self.gate, ask).measure(name, running, plain_only, left_out)
        for sentence in setting.left_out:
            self.console.print(f"{name}: {sentence}", soft_wrap=True, markup=False)
        return setting

    def _options(self, dtype: str, longest: int, draft_model: Path | None = None) -> PeerOptions:
        """longest: tokens of a prompt."""
        return PeerOptions(
            model=str(self.model),
            draft_model=str(draft_model) if draft_model else None,
            dtype=dtype,
            threads=self.chosen.threads,
            max_len=longest + self.chosen.max_tokens + MARGIN,
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
