"""Owns the training loop and its checkpoints.

Does not know what the corpus says. Invariant: resuming from a checkpoint gives bit for bit the weights of a run that
was never stopped, on the same machine and number of threads.
"""

import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.core.files.output import replace_file
from decoding.training.replicas import Replicas
from decoding.training.schedule import Plan
from decoding.training.texts.corpus import END_OF_TEXT, SPECIAL_TOKENS
from decoding.training.tokens import Batch, TokenisedCorpus, pack_batch

MICRO_BATCH_TOKENS = 4096
NUM_REPLICAS = 2
CHECKPOINT_EVERY = 50


@dataclass(frozen=True)
class Shape:
    """The widths of a Llama-style model."""

    vocabulary: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    context_len: int = 2048


@dataclass
class Progress:
    """A run's progress. Only the trainer writes it."""

    step: int = 0
    cursor: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


def make_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A new model in 32-bit floats with weights from the seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.mlp_width,
        max_position_embeddings=shape.context_len,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END_OF_TEXT),
        pad_token_id=SPECIAL_TOKENS.index(END_OF_TEXT),
    )
    return LlamaForCausalLM(config)


class Trainer:
    """Takes steps on one model until its plan is done, writing checkpoints on the way."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        corpus: TokenisedCorpus,
        plan: Plan,
        checkpoint: Path,
        teacher: LlamaForCausalLM | None = None,
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.plan = plan
        self.checkpoint = checkpoint
        self.progress = Progress()
        self.teacher = teacher
        matrices = [weight for name, weight in model.named_parameters() if _is_matrix(name, weight)]
        others = [weight for name, weight in model.named_parameters() if not _is_matrix(name, weight)]
        self._replicas = Replicas(model, NUM_REPLICAS if model.device.type == "cpu" else 1)
        self._optimizers: dict[str, torch.optim.Optimizer] = {
            "matrices": torch.optim.Muon(
                matrices, lr=plan.matrix_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            "others": torch.optim.AdamW(others, lr=plan.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0),
        }
        if checkpoint.exists():
            self._resume()

    @property
    def is_done(self) -> bool:
        """Whether the plan's last step is taken."""
        return self.progress.step >= self.plan.num_steps

    def take_step(self) -> float:
        """One optimizer step; returns its loss. Writes a checkpoint every `CHECKPOINT_EVERY` steps and at the end."""
        started = time.perf_counter()
        progress, stage = self.progress, self.plan.stage(self.progress.step)
        num_rows = max(1, stage.tokens_per_step // stage.row_len)
        batch = pack_batch(self.corpus, progress.cursor, num_rows, stage.row_len)
        loss = self._accumulate(batch, max(1, MICRO_BATCH_TOKENS // stage.row_len))
        self._apply(self.plan.rate_factor(progress.step))
        progress.step += 1
        progress.cursor = batch.cursor
        progress.num_tokens += batch.inputs.numel()
        progress.losses.append(round(loss, 4))
        progress.seconds += time.perf_counter() - started
        if progress.step % CHECKPOINT_EVERY == 0 or self.is_done:
            self.save()
        return loss

    def _accumulate(self, batch: Batch, rows_at_once: int) -> float:
        device = self.model.device
        num_targets = int((batch.targets >= 0).sum())
        loss = partial(self._loss_sum, scale=1 / num_targets)
        total = 0.0
        for first in range(0, len(batch.inputs), rows_at_once):
            rows = slice(first, first + rows_at_once)
            total += self._replicas.accumulate(loss, batch.inputs[rows].to(device), batch.targets[rows].to(device))
        return total

    def _loss_sum(self, model: LlamaForCausalLM, inputs: Tensor, targets: Tensor, scale: float) -> Tensor:
        is_learned = targets >= 0
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state[is_learned]
        logits = model.lm_head(hidden)
        if self.teacher is None or not self.plan.is_learning_from_target(self.progress.step):
            return scale * nn.functional.cross_entropy(logits, targets[is_learned], reduction="sum")
        with torch.no_grad():
            hidden = self.teacher.model(input_ids=inputs, use_cache=False).last_hidden_state[is_learned]
            wanted = self.teacher.lm_head(hidden).softmax(-1)
        return scale * nn.functional.cross_entropy(logits, wanted, reduction="sum")

    def _apply(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rates = {"matrices": self.plan.matrix_rate, "others": self.plan.embedding_rate}
        for name, optimizer in self._optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rates[name] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def save(self) -> None:
        """Writes the checkpoint in one move."""
        with replace_file(self.checkpoint) as file:
            torch.save(
                {
                    "model": self.model.state_dict(),
                    "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
                    "progress": asdict(self.progress),
                },
                file,
            )

    def _resume(self) -> None:
        saved: dict[str, Any] = torch.load(self.checkpoint, map_location=self.model.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        self.progress = Progress(**saved["progress"])


def _is_matrix(name: str, weight: Tensor) -> bool:
    return weight.ndim == 2 and "embed" not in name
