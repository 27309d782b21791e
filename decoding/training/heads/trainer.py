"""Owns a head's training loop and its checkpoints.

Does not know where answers come from. Invariant: a run that goes on from a checkpoint, with as much time as it had,
gives bit for bit the losses of one that was never stopped, on the same machine and number of threads.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decoding.core.files.output import replace_file
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from decoding.training.heads.block.blocks import PaddedLesson, block_loss, draw_roots
from decoding.training.heads.gto import Policy, draw_groups, gto_loss
from decoding.training.heads.options import TrainingOptions
from decoding.training.heads.roll import Context
from decoding.training.heads.texts.answers import Answer
from decoding.training.heads.texts.features import Features
from decoding.training.heads.texts.packs import Pack, chosen_pack
from decoding.training.heads.ttt import Lesson, TttLoss, lesson_of, read_pack, ttt_loss

Clock = Callable[[], float]  # seconds


@dataclass
class Progress:
    """A run's progress. seconds: since its beginning, and of processes that were killed up to their last checkpoint.
    tokens: that were learned, prompts and repetitions included. products: multiplications of weights with rows, of the
    head's own steps. For each step: the loss, each depth's loss and agreement with the target, and for GTO its loss,
    the mean rewards of the head's and the reference's trees, and the mean accepted length."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    products: int = 0
    losses: list[float] = field(default_factory=list)
    depth_losses: list[list[float]] = field(default_factory=list)
    agreements: list[list[float]] = field(default_factory=list)
    gto: list[list[float]] = field(default_factory=list)


class HeadTrainer:
    """Takes steps on one head until its options are done, writing checkpoints on the way.

    reference: the frozen head of GTO; None with other objectives. now: the clock that its seconds are counted by.
    Raises ConfigError if the checkpoint belongs to another run.
    """

    def __init__(
        self,
        head: EagleHead | BlockHead,
        reference: EagleHead | None,
        features: Features,
        packs: Sequence[Pack],
        options: TrainingOptions,
        checkpoint: Path,
        now: Clock = time.monotonic,
    ) -> None:
        assert (reference is not None) == (options.objective == "gto"), options.objective
        self.head, self.options, self.progress = head, options, Progress()
        self._reference, self._features, self._target = reference, features, features.target
        self._packs, self._checkpoint, self._now = packs, checkpoint, now
        self._dtype = getattr(torch, options.dtype)
        self._weights = [weight for weight in head.parameters() if weight.requires_grad]
        self._num_weights = sum(weight.numel() for weight in self._weights)
        is_fused = head.fc.weight.device.type != "cpu"
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=options.rate, betas=options.betas, weight_decay=0.0, fused=is_fused
        )
        if checkpoint.exists():
            self._resume()
        self._saved_at, self._noted_at = self.progress.seconds, now()

    @property
    def is_done(self) -> bool:
        return self._share >= 1.0

    @property
    def _share(self) -> float:
        return self.options.share(self.progress.step, self.progress.seconds)

    def take_step(self) -> float:
        """One optimizer step, on one pack; returns its loss."""
        progress, options = self.progress, self.options
        pack = chosen_pack(self._packs, progress.step, options.seed)
        loss, taught, told = self._learn(pack)
        nn.utils.clip_grad_norm_(self._weights, options.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = options.rate_at(progress.step, self._share)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        progress.losses.append(float(loss.detach()))
        progress.depth_losses.append(taught.losses_I.tolist())
        progress.agreements.append(taught.agreements_I.tolist())
        progress.gto.append(told)
        progress.step += 1
        progress.tokens += pack.num_tokens
        now = self._now()
        progress.seconds += now - self._noted_at
        self._noted_at = now
        if self.is_done or progress.seconds - self._saved_at >= options.save_seconds:
            self.save()
        return progress.losses[-1]

    def save(self) -> None:
        """Write the checkpoint in one move."""
        with replace_file(self._checkpoint) as file:
            saved = {
                "plan": self._plan(),
                "head": self.head.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "progress": asdict(self.progress),
            }
            torch.save(saved, file)
        self._saved_at = self.progress.seconds

    def _plan(self) -> dict[str, Any]:
        """The options that a run must share with the checkpoint it continues."""
        learned = hashlib.sha256("".join(pack.digest for pack in self._packs).encode())
        options = asdict(replace(self.options, save_seconds=0.0, seconds=0.0))
        if self.options.objective != "block":
            del options["block"]
        target_ids = self.head.target_ids.cpu()
        drafted = (target_ids - torch.arange(len(target_ids))).tolist()
        return {**options, "answers": learned.hexdigest(), "draft vocabulary": drafted}

    def _resume(self) -> None:
        saved: dict[str, Any] = torch.load(self._checkpoint, map_location=self.head.fc.weight.device, weights_only=True)
        if saved["plan"] != self._plan():
            was, now = saved["plan"], self._plan()
            names = ", ".join(name for name in now if was.get(name) != now[name])
            raise ConfigError(f"{self._checkpoint} is of a run with other {names}; end that one or use another folder")
        self.head.load_state_dict(saved["head"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self.progress = Progress(**saved["progress"])

    def _learn(self, pack: Pack) -> tuple[Tensor, TttLoss, list[float]]:
        """Add a pack's gradients; return its loss, the depths' losses and agreements, and GTO's figures."""
        lesson = self._lesson(pack)
        with self._autocast():
            if isinstance(self.head, BlockHead):
                roots_BA = draw_roots(
                    pack.answers, self.options.block.num_roots, (self.options.seed, self.progress.step)
                )
                taught = block_loss(self.head, PaddedLesson.of(lesson), roots_BA.to(lesson.tokens_T.device))
                loss, told, num_rows = taught.loss, list[float](), roots_BA.numel() * self.head.config.block_len
            else:
                context = read_pack(self.head, lesson)
                taught, num_rows = ttt_loss(self.head, context, lesson), lesson.steps.ahead_IR.numel()
                loss, told = taught.loss, list[float]()
                if self._reference is not None:
                    extra, told = self._gto(self.head, self._reference, lesson, context, pack)
                    loss = loss + self.options.gto.weight * extra
        loss.backward()  # type: ignore[no-untyped-call]
        self.progress.products += 3 * num_rows * self._num_weights
        return loss, taught, told

    def _lesson(self, pack: Pack) -> Lesson:
        known, ids_W = self._features.of(pack), self.head.target_ids
        wanted_TW = self._target.chances(known.hidden_TE, ids_W).to(self._dtype)
        return lesson_of(pack, known.features_TF, wanted_TW, self.head.t2d[known.likeliest_T])

    def _gto(
        self, head: EagleHead, reference: EagleHead, lesson: Lesson, context: Context, pack: Pack
    ) -> tuple[Tensor, list[float]]:
        """The means of GTO's loss and figures over the texts of a pack."""
        with torch.no_grad():
            other = read_pack(reference, lesson)
        parts, ends = [], pack.lengths_A.cumsum().tolist()
        for place, (answer, end) in enumerate(zip(pack.answers, ends, strict=True)):
            random = np.random.default_rng((self.options.seed, self.progress.step, place))
            groups_GM = draw_groups(random, answer.num_prompt - 1, self._end_of(answer), self.options.gto)
            if not len(groups_GM):
                continue
            first = end - len(answer.tokens)
            both = (Policy(head, context.part(first, end)), Policy(reference, other.part(first, end)))
            with self._target.reading([answer.tokens]) as (reading,):
                parts.append(gto_loss(*both, self._target, reading, groups_GM, self.options.gto))
        if not parts:
            return context.hidden_BTE.sum() * 0, [0.0] * 4
        told = [[float(each.loss.detach()), each.reward, each.reference_reward, each.accepted] for each in parts]
        means = [sum(column) / len(parts) for column in zip(*told, strict=True)]
        return torch.stack([each.loss for each in parts]).mean(), means

    def _end_of(self, answer: Answer) -> int:
        """The end of the rows after which the target has room for a whole tree."""
        room = self._target.model.max_model_len - self.options.gto.tree.num_levels - 2
        return min(len(answer.tokens) - 2, room)

    def _autocast(self) -> torch.autocast:
        is_half = self.options.dtype == "bfloat16"
        return torch.autocast(self.head.fc.weight.device.type, torch.bfloat16, enabled=is_half)
