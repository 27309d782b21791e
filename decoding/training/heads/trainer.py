"""Owns a head's training loop and its checkpoints.

Does not know where answers come from. Invariant: resuming from a checkpoint gives bit for bit the losses of a run that
was never stopped, on the same machine and number of threads.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
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
from decoding.training.heads.answers import Answer
from decoding.training.heads.block.blocks import block_loss, draw_roots
from decoding.training.heads.gto import Policy, draw_groups, gto_loss
from decoding.training.heads.lessons import choose_answers, lesson_of
from decoding.training.heads.options import TrainingOptions
from decoding.training.heads.roll import Context, read
from decoding.training.heads.target import OnlineTarget, Reading
from decoding.training.heads.ttt import Lesson, TttLoss, next_ids, ttt_loss


@dataclass
class Progress:
    """A run's progress. For each step: the loss, each depth's loss and agreement with the target, and for GTO its loss,
    the mean rewards of the head's and the reference's trees, and the mean accepted length."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    depth_losses: list[list[float]] = field(default_factory=list)
    agreements: list[list[float]] = field(default_factory=list)
    gto: list[list[float]] = field(default_factory=list)


class HeadTrainer:
    """Takes steps on one head until its options are done, writing checkpoints on the way.

    reference: the frozen head of GTO; None with other objectives. Raises ConfigError if the checkpoint belongs to
    another run.
    """

    def __init__(
        self,
        head: EagleHead | BlockHead,
        reference: EagleHead | None,
        target: OnlineTarget,
        answers: Sequence[Answer],
        options: TrainingOptions,
        checkpoint: Path,
    ) -> None:
        assert (reference is not None) == (options.objective == "gto"), options.objective
        self.head, self.options, self.progress = head, options, Progress()
        self._reference, self._target, self._answers = reference, target, answers
        self._checkpoint = checkpoint
        self._weights = [weight for weight in head.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=options.rate, betas=options.betas, weight_decay=0.0)
        if checkpoint.exists():
            self._resume()

    @property
    def is_done(self) -> bool:
        return self.progress.step >= self.options.num_steps

    def take_step(self) -> float:
        """One optimizer step; returns its loss."""
        started, progress, options = time.perf_counter(), self.progress, self.options
        records = [
            self._accumulate(progress.step * options.accumulation + part) for part in range(options.accumulation)
        ]
        nn.utils.clip_grad_norm_(self._weights, options.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = options.rate_at(progress.step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        losses, depth_losses, agreements, gto = (
            [sum(each) / len(records) for each in zip(*kind, strict=True)] for kind in zip(*records, strict=True)
        )
        progress.losses.append(losses[0])
        progress.depth_losses.append(depth_losses)
        progress.agreements.append(agreements)
        progress.gto.append(gto)
        progress.step += 1
        progress.seconds += time.perf_counter() - started
        if progress.step % options.checkpoint_every == 0 or self.is_done:
            self.save()
        return losses[0]

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

    def _plan(self) -> dict[str, Any]:
        """The options that a run must share with the checkpoint it continues."""
        learned = hashlib.sha256(b"".join(answer.tokens.tobytes() for answer in self._answers))
        options = asdict(replace(self.options, checkpoint_every=0))
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

    def _accumulate(self, number: int) -> tuple[list[float], list[float], list[float], list[float]]:
        """Add a micro-batch's gradients; return its loss, the depths' losses and agreements, and GTO's figures."""
        options = self.options
        answers = choose_answers(self._answers, number, options.batch, options.seed)
        with self._target.reading([answer.tokens for answer in answers]) as readings:
            lesson = lesson_of(answers, readings, self.head)
            with self._autocast():
                if isinstance(self.head, BlockHead):
                    roots_BA = draw_roots(answers, options.block.num_roots, (options.seed, number))
                    taught = block_loss(self.head, lesson, roots_BA.to(lesson.tokens_BT.device))
                    loss, told = taught.loss, list[float]()
                else:
                    taught, loss, told = self._roll(self.head, lesson, answers, readings, number)
            (loss / options.accumulation).backward()  # type: ignore[no-untyped-call]
        return [float(loss.detach())], taught.losses_I.tolist(), taught.agreements_I.tolist(), told

    def _roll(
        self, head: EagleHead, lesson: Lesson, answers: list[Answer], readings: list[Reading], number: int
    ) -> tuple[TttLoss, Tensor, list[float]]:
        """EAGLE-3's loss, that with GTO's where there is a reference, and GTO's figures."""
        context = read(head, lesson.features_BTF, next_ids(lesson.tokens_BT))
        taught = ttt_loss(head, context, lesson)
        if self._reference is None or self.options.gto.weight == 0:
            return taught, taught.loss, []
        extra, told = self._gto(head, lesson, context, answers, readings, number)
        return taught, taught.loss + self.options.gto.weight * extra, told

    def _gto(
        self,
        head: EagleHead,
        lesson: Lesson,
        context: Context,
        answers: list[Answer],
        readings: list[Reading],
        number: int,
    ) -> tuple[Tensor, list[float]]:
        """The means of GTO's loss and figures over the texts of a micro-batch."""
        assert self._reference is not None
        with torch.no_grad():
            reference = read(self._reference, lesson.features_BTF, next_ids(lesson.tokens_BT))
        parts = []
        for place, (answer, reading) in enumerate(zip(answers, readings, strict=True)):
            random = np.random.default_rng((self.options.seed, number, place))
            groups_GM = draw_groups(random, answer.num_prompt - 1, self._end_of(answer), self.options.gto)
            policy = Policy(head, context.of(place, len(answer.tokens)))
            other = Policy(self._reference, reference.of(place, len(answer.tokens)))
            if len(groups_GM):
                parts.append(gto_loss(policy, other, self._target, reading, groups_GM, self.options.gto))
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
