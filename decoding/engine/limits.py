"""How much runs at the same time: as configured, or as the machine's costs say. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.costs.price import CostCurve
from decoding.errors import ConfigError

GPU_RUNNING, GPU_BATCH = 256, 2048  # the rows of the largest captured forward
EXACT_BATCH = 512  # of a GPU: prompts cut as finely as all else take room for partial sums of every token
MOST_RUNNING = 256
GPU_PROMPT_LOGITS, GPU_TREE_TOKENS = 256, 768  # a thousand tokens' logits take a gigabyte where words are 150,000
TOKENS_EACH = 2 * BLOCK_LEN  # of room, that a further running sequence should find
FIXED_SHARE = 0.05  # of a forward's time that may go to what does not grow with its rows
LEAST_BATCH, MOST_BATCH = 64, 512


@dataclass(frozen=True, slots=True)
class Limits:
    """max_running: sequences in a step; max_batch_rows: its rows; max_waiting: requests in the queue;
    max_step_seconds: by how much prompts may delay a step of those that decode. Of a step's rows logits are computed of
    at most max_prompt_logits of prompts, and of max_tree_tokens in trees, roots included. joint_len: the most tokens of
    a prompt that are read in one step, since they see each other, beside the roots of all others that run."""

    max_running: int
    max_batch_rows: int
    max_waiting: int
    max_step_seconds: float
    max_prompt_logits: int
    max_tree_tokens: int
    joint_len: int = 0

    @property
    def most_rows(self) -> int:
        """Of a step that has tokens which see each other, too."""
        return max(self.max_batch_rows, self.max_running + self.joint_len)

    @property
    def max_logits(self) -> int:
        """The rows of a step's logits."""
        return min(self.most_rows, self.max_prompt_logits + self.max_tree_tokens)

    @property
    def max_open(self) -> int:
        """The most requests that have not ended: a further one is refused."""
        return self.max_running + self.max_waiting


def limits_for(
    config: EngineConfig, curve: CostCurve, device_type: str, affordable_slots: int, joint_len: int = 0
) -> Limits:
    """As configured, but no more sequences than a step has rows for beside a block of a prompt. joint_len: tokens of a
    picture that the model reads in one step, which are more than its rows only where these are not configured. Raises
    ConfigError for fewer rows than a block and one.

    On a CPU as many sequences as bring four fifths of the tokens a second that any number could, and as many rows
    as let a long prompt run at nearly full speed: more would only make everybody wait for longer."""
    tokens_per_base = curve.tokens_of_base
    max_running, max_batch_rows = config.max_running, config.max_batch_rows
    if max_running is None:
        by_costs = GPU_RUNNING if device_type != "cpu" else max(8, round(4 * tokens_per_base))
        max_running = max(1, min(by_costs, MOST_RUNNING, affordable_slots // TOKENS_EACH))
    if max_batch_rows is None:
        by_costs = GPU_BATCH if device_type != "cpu" else round(tokens_per_base / FIXED_SHARE)
        most = (EXACT_BATCH if config.exact else GPU_BATCH) if device_type != "cpu" else MOST_BATCH
        max_batch_rows = max(LEAST_BATCH, max_running + BLOCK_LEN, min(by_costs, most) // BLOCK_LEN * BLOCK_LEN)
    if max_batch_rows <= BLOCK_LEN:
        raise ConfigError(f"max_batch_rows is {max_batch_rows}, it must be more than {BLOCK_LEN}")
    if config.max_batch_rows is not None:
        joint_len = joint_len if joint_len < max_batch_rows else 0
        max_running = min(max_running, max_batch_rows - joint_len)
    max_running = min(max_running, max_batch_rows - BLOCK_LEN)
    prompt_logits = tree_tokens = max_batch_rows
    if device_type != "cpu":
        prompt_logits = min(max_batch_rows, GPU_PROMPT_LOGITS)
        tree_tokens = min(max_batch_rows, max(max_running, GPU_TREE_TOKENS))
    seconds = config.max_step_ms / 1000
    prompt_logits = max(prompt_logits, joint_len)
    return Limits(max_running, max_batch_rows, config.max_waiting, seconds, prompt_logits, tree_tokens, joint_len)
