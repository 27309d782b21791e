"""Makes an untrained block head: the target's widths, embedding, last layers and output layer, else from the seed.

Invariant: the same target, mask and seed give the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoding.drafting.block.block_config import BlockConfig, spread_layers
from decoding.drafting.block.network import BlockHead
from decoding.training.heads.fresh_head import begin_as_target, counts_of, layer_for
from decoding.training.heads.options import BlockOptions
from decoding.training.heads.target import OnlineTarget

NUM_FEATURES = 5  # layers, as in DFlash's published heads
# Shape suffixes: V the target's vocabulary, E its width.


def rarest_token(answers: Iterable[NDArray[np.int32]], embeddings_VE: Tensor) -> int:
    """The token that the answers hold least often, of equally rare ones the highest id: it stands for a place that is
    to be named. One whose embedding is zero would be told from nothing."""
    counts_V = counts_of(answers, len(embeddings_VE))
    counts_V[(embeddings_VE == 0).all(1).cpu().numpy()] = np.iinfo(np.int64).max
    return int(len(counts_V) - 1 - np.argmin(counts_V[::-1]))


def new_block_head(target: OnlineTarget, mask_token_id: int, shape: BlockOptions, seed: int) -> BlockHead:
    """A float32 block head for a target, on its device, with the last norm as the target's own.

    Without a correction it is causal, so that a place is named with those before it in mind. With one it is as DSpark's
    are: all rows see all, the root's names a place too, and the correction begins as none.
    """
    embedding, output = shared_layers(target)
    num_layers = target.model.num_layers
    config = BlockConfig(
        layer=layer_for(target.config, len(embedding.weight)),
        feature_layers=spread_layers(num_layers, min(NUM_FEATURES, num_layers)),
        block_len=shape.block_len,
        mask_token_id=mask_token_id,
        windows=(0,) * shape.num_layers,
        are_causal=(shape.markov_rank == 0,) * shape.num_layers,
        names_from_root=shape.markov_rank > 0,
        markov_rank=shape.markov_rank,
    )
    torch.manual_seed(seed)
    head = BlockHead(config, embedding, output)
    if head.markov_head is not None:
        nn.init.zeros_(head.markov_head.markov_w2.weight)
    with torch.no_grad():
        begin_as_target(head, target)
    return head.to(embedding.weight.device)


def shared_layers(target: OnlineTarget) -> tuple[nn.Embedding, nn.Linear]:
    """A target's embedding and output layer in float32, for heads that use them. Neither is trained."""
    embeddings_VE = target.model.shared.embeddings.detach().float()
    num_tokens, width = embeddings_VE.shape
    embedding = nn.Embedding(num_tokens, width, _weight=embeddings_VE, _freeze=True)
    output = nn.Linear(width, num_tokens, bias=False)
    output.weight = nn.Parameter(target.output_VE.float().to(embedding.weight.device), requires_grad=False)
    return embedding, output
