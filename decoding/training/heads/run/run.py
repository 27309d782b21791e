"""The run of a job: answers, features, the trainings of its arms, and acceptance lengths on held-out prompts.

Owns the order of the parts. Invariant: every file in the work folder is complete, and a part that was killed goes on
from them, so the same command can be killed at any moment and started again.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch

from decoding.core.files.output import claim_folder, replace_file
from decoding.drafting.block.checkpoint import save_block
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.checkpoint import save_head
from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve
from decoding.model.files.gguf_place import gguf_paths
from decoding.training.heads.acceptance import CHAIN, by_temperature
from decoding.training.heads.curves import plot_curves
from decoding.training.heads.options import TrainingOptions
from decoding.training.heads.run.answering import answers_folder
from decoding.training.heads.run.beginnings import block_head, eagle_head, first_head, start_head
from decoding.training.heads.run.device_limit import Clock, measure_limit
from decoding.training.heads.run.job import Arm, Job
from decoding.training.heads.run.parts import Part, Parts
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.answers import load_answers
from decoding.training.heads.texts.features import Features, fill
from decoding.training.heads.texts.packs import Pack, packed
from decoding.training.heads.trainer import HeadTrainer

EPOCHS = 5
ACCEPTANCE = "acceptance.json"  # in the work folder, by arm
Acceptance = dict[str, dict[str, float]]  # by shape of trees, by temperature
Tell = Callable[[str], None]


class Run:
    """Answers what is still to be answered. tell: is told a line now and then. now: the clock. Raises ConfigError for
    a folder that holds something else, for data that are none, and for a GGUF file."""

    def __init__(self, job: Job, tell: Tell, now: Clock = time.monotonic) -> None:
        if gguf_paths(job.engine.model, job.engine.gguf_file, job.engine.revision):
            raise ConfigError(
                f"--model {job.engine.model} is a GGUF file: train on the folder of the model that it was made from, "
                "and serve the file with that head"
            )
        claim_folder(job.out)
        self.job, self.now = job, now
        config, source = resolve(job.engine)
        limit = measure_limit(torch.device(config.device), getattr(torch, job.options.dtype), now)
        self.parts = Parts(job.work / "parts.json", job.shares, job.minutes, limit, tell, now)
        folder = answers_folder(job, source, self.parts)
        self.answers = load_answers(folder, job.asking.max_len)
        self.held_out = load_answers(folder, job.asking.max_len, held_out=True)
        self.packs: list[Pack] = packed(self.answers, job.options.tokens, job.options.seed)

    @cached_property
    def target(self) -> OnlineTarget:
        longest = max(len(answer.tokens) for answer in (*self.answers, *self.held_out))
        return OnlineTarget.load(self.job.engine, max(longest, self.job.options.tokens))

    def finish(self) -> dict[str, Acceptance]:
        """Do what is left, and write the heads; return each arm's acceptance lengths on the held-out answers. Of
        several arms the head with the longest trees is also the run's own."""
        arms, out = self.job.arms, self.job.out
        for arm in arms:
            if not self.parts.is_done(arm.name):
                self._train(arm)
        found = {arm.name: self._acceptance(arm) for arm in arms}
        best = max(arms, key=lambda arm: math.fsum(found[arm.name]["tree"].values()))
        if len(arms) > 1:
            for name in ("model.safetensors", "config.json"):
                with replace_file(out / name) as file:
                    file.write((self.job.folder_of(best) / name).read_bytes())
        seconds = {name: round(spent.seconds, 1) for name, spent in self.parts.spent.items()}
        told = {"num_answers": len(self.answers), "seconds": seconds, "best": best.name, "acceptance_lengths": found}
        with replace_file(out / "training.json") as file:
            file.write(json.dumps(told, indent=2).encode() + b"\n")
        return found

    def _train(self, arm: Arm) -> None:
        """Do the rest of a training and write its head."""
        job, folder = self.job, self.job.folder_of(arm)
        head = first_head(job, arm, self.target, self.answers)
        reference = start_head(job, arm, self.target).requires_grad_(False) if arm.objective == "gto" else None
        features = self._features(head)
        with self.parts.part(arm.name) as part:
            options = self._options(arm, part)
            checkpoint = job.work / f"{arm.name}.pt"
            trainer = HeadTrainer(head, reference, features, self.packs, options, checkpoint, self.now)
            progress = trainer.progress
            while not trainer.is_done:
                tokens, products = progress.tokens, progress.products
                loss = trainer.take_step()
                more = f"step {progress.step}, loss {loss:.3f}"
                part.note(progress.tokens - tokens, progress.products - products, more=more)
            if not checkpoint.is_file():  # there was no time for a step
                trainer.save()
            if isinstance(head, BlockHead):
                save_block(head, folder, self.target.model.num_layers)
            else:
                save_head(head, folder, job.engine.model)
            if find_spec("matplotlib") is not None and progress.step:
                plot_curves(progress, folder / "curves.svg")

    def _features(self, head: EagleHead | BlockHead) -> Features:
        """What the target knows of the packs, of which the part of that name keeps as many as there is room for."""
        job = self.job
        if self.target.layers != head.config.feature_layers:
            self.target.watch(head.config.feature_layers)
        room = min(job.feature_bytes, shutil.disk_usage(job.out).free // 2)
        features = Features(self.target, job.work, room)
        if not self.parts.is_done("features"):
            with self.parts.part("features") as part:
                filling = fill(features, self.packs)
                while not part.is_over and (num_tokens := next(filling, 0)):
                    part.note(num_tokens, num_tokens * self.target.model.num_parameters)
        return features

    def _options(self, arm: Arm, part: Part) -> TrainingOptions:
        """The job's with the arm's end: as many steps or seconds as the arm that it is like, or as are asked for, or as
        there is time for."""
        job = self.job
        options = replace(job.options, objective=arm.objective, seed=arm.seed, rate=job.rate_of(arm))
        if arm.like is not None:
            like = self._progress(arm.like)
            return replace(options, num_steps=None if arm.by_seconds else like["step"], seconds=like["seconds"])
        if options.num_steps is not None:
            return options
        if math.isinf(part.left):
            return replace(options, num_steps=EPOCHS * len(self.packs))
        return replace(options, seconds=self._progress(arm.name).get("seconds", 0.0) + max(0.0, part.left))

    def _progress(self, name: str) -> dict[str, Any]:
        """Of an arm's checkpoint."""
        path = self.job.work / f"{name}.pt"
        if not path.is_file():
            return {}
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["progress"]
        return found

    def _acceptance(self, arm: Arm) -> Acceptance:
        """Measured once, in a part that has the time it takes."""
        path, name = self.job.work / ACCEPTANCE, f"acceptance of {arm.name}"
        known: dict[str, Acceptance] = json.loads(path.read_text()) if path.is_file() else {}
        if arm.name not in known or not self.parts.is_done(name):
            folder, is_block = self.job.folder_of(arm), arm.objective == "block"
            head = block_head(folder, self.target) if is_block else eagle_head(folder, self.target)
            if self.target.layers != head.config.feature_layers:
                self.target.watch(head.config.feature_layers)
            with self.parts.part(name) as part:
                shapes = {"chain": CHAIN, "tree": self.job.options.gto.tree}
                known[arm.name] = {
                    shape: by_temperature(head, self.target, self.held_out, tree) for shape, tree in shapes.items()
                }
                part.note(sum(len(answer.reply) for answer in self.held_out))
                with replace_file(path) as file:
                    file.write(json.dumps(known, indent=2).encode())
        return known[arm.name]
