"""A target's first MTP module as the files have it: safetensors, quantised or not, or GGUF.

Knows names and weights, and no network at work. Invariant: numbers are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import snapshot_download

from decoding.config import EngineConfig
from decoding.drafting.mtp.layout import ANY_MODULE, GGUF, LAYOUTS, Layout
from decoding.drafting.mtp.network import of_one_layer
from decoding.errors import ConfigError
from decoding.model.blueprint import read_config
from decoding.model.checkpoint import resolve
from decoding.model.files.gguf_file import GgufFile, read_gguf
from decoding.model.files.gguf_metadata import Metadata
from decoding.model.files.gguf_model import mtp_names, mtp_weights
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.files.quantized_checkpoint import Shards, weights_among
from decoding.model.files.skeleton import empty_model
from decoding.model.target_model import TargetModel
from decoding.weights.kinds import methods
from decoding.weights.matrix import Matrix
from decoding.weights.module_tensors import Fields

Weights = dict[str, Matrix]


class StoredModule(NamedTuple):
    """weights: by own names, which are those of `MtpHead`, or of a model with one layer. told: what a weight of such a
    name is called in the files."""

    weights: Weights
    told: Callable[[str], str]


def stored_module(config: EngineConfig, target: TargetModel) -> StoredModule | None:
    """What the files of `config.model` have; None where they have no such module. Raises ConfigError naming a tensor
    where its type of model is not known, and where its weights are in no format that is read."""
    gguf = gguf_paths(config.model, config.gguf_file, config.revision)
    file, shards = read_gguf(gguf) if gguf else None, Shards([] if gguf else _paths(config))
    layout = LAYOUTS.get(target.shared.model_type)
    if layout is None:
        strange = next(filter(ANY_MODULE.search, file.tensors if file else shards.names()), None)
        if strange is None:
            return None
        raise ConfigError(
            f"its checkpoint has a tensor {strange}, and how a model of type {target.shared.model_type!r} drafts with "
            "it is not known here"
        )
    found = _in_gguf(file, target) if file else _in_shards(shards, layout, config, target)
    return found if found.weights else None


def _in_gguf(file: GgufFile, target: TargetModel) -> StoredModule:
    if not Metadata(file).num_drafting:
        return StoredModule({}, str)
    model = empty_model(of_one_layer(target.shared.config), target.dtype)
    names = mtp_names(file, model)
    weights = _by_own_name(mtp_weights(file, model), GGUF, 0)
    return StoredModule(weights, lambda own: names.get(f"model.{own}", GGUF.file_name(own)))


def _in_shards(shards: Shards, layout: Layout, config: EngineConfig, target: TargetModel) -> StoredModule:
    num_layers = target.shared.config.num_hidden_layers
    names = [name for name in shards.names() if layout.own_name(name, num_layers) is not None]
    quantization = _quantization(config) if names else None
    found: Weights
    if quantization is None:
        found = {name: shards.matrix(name) for name in names}
    else:
        biases = [name for name in names if name.endswith(".bias")]  # AutoGPTQ writes some that no layer has
        found = weights_among(shards, quantization, names, wanted=biases)
    return StoredModule(_by_own_name(found, layout, num_layers), layout.file_name)


def _by_own_name(weights: Weights, layout: Layout, num_layers: int) -> Weights:
    """Without those that are not the module's, or are the target's as well."""
    return {own: each for name, each in weights.items() if (own := layout.own_name(name, num_layers)) is not None}


def _paths(config: EngineConfig) -> list[Path]:
    """The safetensors files that the target was loaded from."""
    _, source = resolve(config)
    folder = Path(source)
    if not folder.is_dir():
        folder = Path(snapshot_download(source, revision=config.revision, local_files_only=True))
    return sorted(folder.glob("*.safetensors"))


def _quantization(config: EngineConfig) -> Fields | None:
    """Of config.json, if it is of a kind that is read here; libraries may read others."""
    _, source = resolve(config)
    origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    found = getattr(read_config(source, origin), "quantization_config", None)
    fields: Fields = found if isinstance(found, dict) else {} if found is None else found.to_dict()
    return fields if fields.get("quant_method") in methods() else None
