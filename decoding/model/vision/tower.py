"""The part of a model that sees: transformers' own tower and projector, which make rows of pictures.

Knows nothing of tokens, requests or what is kept. Invariant: each picture is seen alone, on a number of threads that
never changes, so that equal pictures have equal rows.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from decoding.config import EngineConfig
from decoding.core.picture import Picture, RotaryPositions, Span, rotary_positions
from decoding.errors import ConfigError, ModelRefused, listed
from decoding.model.blueprint import size_of
from decoding.model.checkpoint import identity
from decoding.model.device.runner import Progress
from decoding.model.files.gguf_file import GgufFile, read_gguf
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.memory import check_weights_fit
from decoding.model.refusal import refusing
from decoding.model.vision.families import JOINT, LANGUAGE_PARTS, THREE_POSITIONS, image_token_id, sees, why_not
from decoding.model.vision.projector_files import UNSEEN, sight_of
from decoding.model.vision.projector_tensors import tensors_by_parameter
from decoding.model.weights import check_numbers

# Shape suffixes: N rows of a picture, E width of the text model, F a row's embedding and what its layers are given.
PASSED_ON = {"image_sizes"}  # to a tower, by LLaVA of earlier transformers, which has no name for it
GRID = "image_grid_thw"  # of patches in time, height and width, among the inputs
UNWANTED = "it is served with --no-images"
LOADING = "Loading what sees pictures"
REPORTING = {"output_loading_info": True, "ignore_mismatched_sizes": True}
Load = Callable[[Any, torch.dtype], Any]  # from a class and a dtype to a model and what transformers says of loading it
logger = logging.getLogger(__name__)


class Tower:
    """model: a model that sees, without its text part, in evaluation mode. width: of the text model. depth: how many of
    its layers are given more of a picture than its embeddings. joint_len: tokens of a picture that see each other in
    both directions; 0 if none do. identity: changes only with its weights."""

    def __init__(self, model: PreTrainedModel, config: Any, width: int, num_threads: int) -> None:
        self._model: Any = model
        self._width, self._num_threads = width, num_threads
        self._arguments = frozenset(inspect.signature(model.get_image_features).parameters) | PASSED_ON
        self.image_token_id = image_token_id(config)
        vision = config.vision_config
        self.depth = len(getattr(vision, "deepstack_visual_indexes", ()))
        self._merged = vision.spatial_merge_size if config.model_type in THREE_POSITIONS else None  # patches a side
        self.joint_len: int = config.mm_tokens_per_image if config.model_type in JOINT else 0
        self.identity = identity(model)
        self.num_bytes = sum(each.nbytes for each in model.parameters())

    def see(self, picture: Picture) -> torch.Tensor:
        """[N, F], on the model's device and in its dtype: embeddings, and as many numbers again for each layer that is
        given more. Raises ValueError where the picture has not as many rows as places in its prompt. May be called by
        any thread, one at a time."""
        torch.set_num_threads(self._num_threads)
        inputs = {name: self._placed(torch.from_numpy(each.array())) for name, each in picture.inputs.items()}
        if unknown := inputs.keys() - self._arguments:
            raise ValueError(f"the tower has no arguments {listed(sorted(unknown))}")
        with torch.inference_mode():
            seen = self._model.get_image_features(**inputs, return_dict=True)
        parts = [seen.pooler_output, *(getattr(seen, "deepstack_features", None) or ())]
        rows_NF = torch.cat([_joined(part) for part in parts], dim=-1)
        if rows_NF.shape != (picture.num_rows, (1 + self.depth) * self._width):
            raise ValueError(f"the tower gave {tuple(rows_NF.shape)}, for {picture.num_rows} places in the prompt")
        return rows_NF.contiguous()

    def rotary_positions(self, pictures: Sequence[Picture]) -> RotaryPositions | None:
        """Of a prompt with these pictures; None where positions are places. Raises ValueError where they cannot have
        any."""
        if self._merged is None:
            return None
        grids = [picture.inputs[GRID].array()[0].tolist() for picture in pictures]
        merged = self._merged
        return rotary_positions(pictures, [(time, high // merged, wide // merged) for time, high, wide in grids])

    def joint_spans(self, pictures: Sequence[Picture]) -> tuple[Span, ...]:
        """The neighbouring tokens of a prompt that see each other in both directions, ascending."""
        if not self.joint_len or not pictures:
            return ()
        spans = [span for picture in pictures for span in picture.spans]
        return tuple(_neighbours(np.concatenate([np.arange(span.first, span.end) for span in spans])))

    def _placed(self, numbers: torch.Tensor) -> torch.Tensor:
        dtype = self._model.dtype if numbers.is_floating_point() else numbers.dtype
        return numbers.to(self._model.device, dtype)


def _neighbours(places: NDArray[np.int64]) -> list[Span]:
    """Ascending places, neighbours together."""
    parts = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return [Span(int(part[0]), len(part)) for part in parts if len(part)]


def _joined(part: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """[N, E], of one picture that a model may have seen in several parts."""
    pieces = [part] if isinstance(part, torch.Tensor) else part
    return torch.cat([each.reshape(-1, each.shape[-1]) for each in pieces])


def load_tower(
    folder: str, config: EngineConfig, model: PreTrainedModel, num_threads: int, progress: Progress
) -> tuple[Tower | None, str | None]:
    """The tower of the model in a folder or on the hub, or of the projector that goes with its GGUF file, beside its
    text model, which is loaded; None with the reason, a clause, where it has none that can be served. Raises
    ConfigError and ModelRefused where it should have one and its files are broken."""
    paths = gguf_paths(config.model, config.gguf_file, config.revision)
    if paths:
        return _beside(paths, config, model, num_threads, progress)
    if config.mmproj is not None:
        raise ConfigError(f"--mmproj names the projector of a GGUF file, and {config.model!r} is none")
    origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    whole = AutoConfig.from_pretrained(folder, **origin)
    if not sees(whole):
        return None, "it reads text alone"
    if (reason := why_not(whole)) is not None:
        return None, reason
    if not config.images:
        return None, UNWANTED
    if getattr(whole, "quantization_config", None) is not None:
        return None, "the towers of quantised checkpoints are not read"
    progress(LOADING, 0.95)
    with refusing(f"the tower of {config.model!r} cannot be loaded"):
        tower = _loaded(
            whole, model, "config.json", lambda kind, dtype: _from_folder(kind, folder, whole, dtype, origin)
        )
    return _tower(tower, whole, model, num_threads), None


def _beside(
    paths: Sequence[Path], config: EngineConfig, model: PreTrainedModel, num_threads: int, progress: Progress
) -> tuple[Tower | None, str | None]:
    """The same, of a projector's file. One that is found, and not asked for, is no fault of the model."""
    sight = sight_of(paths, config.mmproj)
    if config.images and sight.blindness not in (None, UNSEEN):
        logger.warning("Pictures are not taken: %s.", sight.blindness)
    if sight.projector is None or sight.folder is None or not config.images:
        return None, sight.blindness or UNWANTED
    progress(LOADING, 0.95)
    try:
        with refusing(f"the projector {sight.projector.name} cannot be loaded"):
            whole, file = AutoConfig.from_pretrained(sight.folder), read_gguf([sight.projector])
            tower = _loaded(whole, model, "metadata", lambda kind, dtype: _from_file(kind, file, whole, dtype))
    except (ConfigError, ModelRefused) as error:
        if config.mmproj is not None:
            raise
        logger.warning("Pictures are not taken: %s.", error)
        return None, str(error)
    return _tower(tower, whole, model, num_threads), None


def _tower(tower: PreTrainedModel, whole: Any, model: PreTrainedModel, num_threads: int) -> Tower:
    return Tower(tower.eval(), whole, model.get_input_embeddings().embedding_dim, num_threads)


def _loaded(whole: Any, model: PreTrainedModel, said: str, load: Load) -> PreTrainedModel:
    """A tower on the model's device and in its dtype. said: what says its sizes."""
    kind = _without_text(MODEL_MAPPING[type(whole)])
    size = size_of(lambda: kind(whole))
    check_weights_fit(size * model.dtype.itemsize, model.device, size)
    tower, found = load(kind, model.dtype)
    if misfits := [name for name, *_ in found["mismatched_keys"]]:
        raise ConfigError(f"the weights of its tower do not fit its {said}: {listed(misfits)}")
    if found["missing_keys"]:
        raise ConfigError(f"the weights of its tower lack {listed(sorted(found['missing_keys']))}")
    tower.to(model.device)
    check_numbers(tower)
    loaded: PreTrainedModel = tower
    return loaded


def _from_folder(kind: Any, folder: str, whole: Any, dtype: torch.dtype, origin: dict[str, Any]) -> Any:
    return kind.from_pretrained(folder, config=whole, dtype=dtype, **REPORTING, **origin)


def _from_file(kind: Any, file: GgufFile, whole: Any, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        shapes = {name: tuple(each.shape) for name, each in kind(whole).named_parameters()}
    weights = tensors_by_parameter(file, shapes, whole, dtype)
    return kind.from_pretrained(None, config=whole, dtype=dtype, state_dict=weights, **REPORTING)


def _without_text(kind: type[PreTrainedModel]) -> Any:
    """The class, whose models have no text part."""

    def begin(self: nn.Module, config: Any) -> None:
        build: Callable[..., None] = kind.__init__
        build(self, config)
        for name in LANGUAGE_PARTS:
            if hasattr(self, name):
                setattr(self, name, None)

    return type(kind.__name__, (kind,), {"__init__": begin, "__module__": kind.__module__})
