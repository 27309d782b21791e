"""`python -m decoding.audit [TYPES...]`: which of transformers' causal language models Gander can serve.

Builds a tiny random model of every type and loads it as a target, with probe and self-test, in float64; of a type that
sees or hears as well, its text model, and whether its pictures are served. Each type runs in its own child process with
a time limit, so that its crash affects no other.
Knows nothing of checkpoints. Invariant: every requested type gets exactly one line.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import resource
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from decoding.audit.tiny_configs import OVERRIDES, SMALL_FIELDS
from decoding.config import EngineConfig
from decoding.errors import ModelRefused
from decoding.model.blueprint import text_part
from decoding.model.target_model import TargetModel
from decoding.model.vision.families import PROCESSORS
from decoding.model.vision.projectors import TYPES_IN_FILES

TIME_LIMIT = 120  # seconds per type
MEMORY_LIMIT = 6 * 2**30  # bytes per type
MAX_PARAMETERS = 30_000_000
SENTENCE_LEN = 160
PASSED = "passed"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """reason: "passed", or the reason for the refusal."""

    model_type: str
    reason: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.reason == PASSED


def known_types() -> list[str]:
    """Every model type that AutoModelForCausalLM builds, and every one that reads images and text."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})


def audit(model_type: str) -> AuditResult:
    """Try one type in this process."""
    start = time.perf_counter()
    try:
        config = EngineConfig(model=model_type, attention="sdpa")
        TargetModel.from_model(tiny_model(model_type).double(), config)
        reason = PASSED
    except ModelRefused as refusal:
        reason = str(refusal)
    except Exception as error:  # types that cannot be built this small raise errors of any kind
        reason = f"{type(error).__name__}: {error}"
    return AuditResult(model_type, reason.splitlines()[0] if reason else "failed", time.perf_counter() - start)


def audit_apart(model_type: str) -> AuditResult:
    """Try one type in a child process that ends after TIME_LIMIT seconds."""
    start = time.perf_counter()
    context = multiprocessing.get_context("forkserver")  # forks from a process without threads
    context.set_forkserver_preload(["decoding.model.target_model"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_audit_into, args=(model_type, sender), daemon=True)
    child.start()
    sender.close()
    try:
        reason = receiver.recv() if receiver.poll(TIME_LIMIT) else f"no result after {TIME_LIMIT} s"
    except EOFError:
        reason = "no result: the process died"
    child.kill()
    child.join()
    return AuditResult(model_type, reason, time.perf_counter() - start)


def _audit_into(model_type: str, sender: Connection) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    torch.set_num_threads(1)
    sender.send(audit(model_type).reason)


def tiny_model(model_type: str) -> Any:
    """A random model of four narrow layers with windows and chunks of eight tokens, in evaluation mode."""
    config = _tiny_config(model_type)
    with torch.device("meta"):
        num_parameters = AutoModelForCausalLM.from_config(config).num_parameters()
    if num_parameters > MAX_PARAMETERS:
        raise ValueError(f"the audit cannot make it small: {num_parameters / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.6 * parameter.shape[-1] ** -0.5)
            elif not parameter.any():
                parameter.copy_(torch.randn(parameter.shape) * 0.1)
    return model


def _tiny_config(model_type: str) -> Any:
    """The type's configuration with those small values that it has a field for, without the ones that it rejects."""
    model_type = _text_type(model_type)
    kind = CONFIG_MAPPING[model_type]
    accepted = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "__annotations__", {})}
    accepted |= set(getattr(kind, "__dataclass_fields__", {}))
    fields = {name: value for name, value in SMALL_FIELDS.items() if name in accepted} | OVERRIDES.get(model_type, {})
    errors: list[Exception] = []
    for rejected in ("", "head_dim", "sliding_window", "num_key_value_heads", "initializer_range"):
        try:
            return kind(**{name: value for name, value in fields.items() if name != rejected})
        except Exception as error:  # configurations raise many kinds of errors
            errors.append(error)
    raise errors[0]


def _text_type(model_type: str) -> str:
    """The type of the text model that a type wraps; the type itself if it wraps none."""
    try:
        found: str = text_part(CONFIG_MAPPING[model_type]()).model_type
    except Exception:  # its configuration has no defaults
        found = model_type
    if found not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(f"{model_type} has no text model that is a causal language model of its own")
    return found


def _pictures(model_type: str) -> str:
    """Whether they are served, and of which files."""
    if model_type not in PROCESSORS:
        return ""
    return "yes, of GGUF files too" if model_type in TYPES_IN_FILES else "yes"


def main(arguments: Sequence[str]) -> int:
    """Audit the named types, or all; print a table and the count; return 0 if all named types passed."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    console = Console()
    types = list(arguments) or known_types()
    results = [audit_apart(name) for name in track(types, "Auditing causal language models", console=console)]
    table = Table("type", "result", "pictures", "seconds", "reason", expand=True)
    for result in results:
        verdict = "[green]pass[/green]" if result.passed else "[red]fail[/red]"
        reason = "" if result.passed else result.reason[:SENTENCE_LEN].replace("[", "(")
        sees = _pictures(result.model_type) if result.passed else ""
        table.add_row(result.model_type, verdict, sees, f"{result.seconds:.1f}", reason)
    console.print(table)
    num_passed = sum(result.passed for result in results)
    console.print(f"{num_passed} of {len(results)} types pass")
    return 0 if not arguments or num_passed == len(results) else 1
