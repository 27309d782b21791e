"""Makes the models of a server of their settings. Raises ConfigError for what can be known before any is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from decoding.config import NO_NAMES
from decoding.errors import ConfigError
from server.config import ServerSettings, require_own_names
from server.engine_client.client import EngineClient
from server.engine_client.processes.restart_policy import RestartPolicy
from server.engine_client.processes.standby import Standby
from server.engine_client.queue_gate import QueueLimits
from server.engine_client.request_bytes import default_limit
from server.engine_client.sessions.session_file import NO_KEY, read_key
from server.engine_client.sessions.session_folder import FolderLimits, SessionFolder
from server.metrics.metrics import ModelMetrics
from server.models.model import Model
from server.models.need import needed_bytes
from server.models.residency import Residency
from server.prompts.model_check import check_model

FOR_GOOD, A_WHILE = -1.0, 300.0  # keep_alive by default, of one model and of each of several


def make_models(
    settings: Sequence[ServerSettings], max_loaded: int | None, standby: Standby, policy: RestartPolicy
) -> list[Model]:
    """A model of each of these settings, whose workers are made of `standby`. max_loaded: at a time, if that is
    limited."""
    require_own_names(settings)
    for each in settings:
        _check(each, f"models.{each.model_name}.model: " if len(settings) > 1 else "")
    num_beside = min(len(settings), max_loaded or len(settings))
    return [
        _made(each, standby, policy, num_beside, "" if each is settings[0] else each.model_name, len(settings) > 1)
        for each in settings
    ]


def _made(
    settings: ServerSettings, standby: Standby, policy: RestartPolicy, num_beside: int, apart: str, is_one_of_many: bool
) -> Model:
    """num_beside: models that may be loaded at a time. apart: the name by which its sessions lie apart from others'."""
    metrics = ModelMetrics(settings.model_name)
    client = EngineClient(
        replace(settings.engine_config(), models=num_beside),
        _limits(settings, num_beside),
        metrics,
        standby,
        policy,
        settings.keep_alive_seconds,
        _sessions_folder(settings, apart),
    )
    keep_alive = settings.keep_alive
    if keep_alive is None:
        keep_alive = A_WHILE if is_one_of_many else FOR_GOOD
    is_preloaded = not is_one_of_many if settings.preload is None else settings.preload
    need = needed_bytes(settings)
    return Model(settings, client, metrics, Residency(keep_alive), need, is_preloaded, is_one_of_many)


def _check(settings: ServerSettings, place: str) -> None:
    """place: what a sentence about the model begins with."""
    try:
        check_model(settings.model, settings.revision, gguf_file=settings.gguf_file, mmproj=settings.mmproj)
        if settings.draft_model not in NO_NAMES:
            check_model(settings.draft_model, None, has_tokenizer=False)
        if settings.draft_head is not None:
            check_model(settings.draft_head, None, has_tokenizer=False)
    except ConfigError as error:
        raise ConfigError(f"{place}{error}") from error


def _limits(settings: ServerSettings, num_beside: int) -> QueueLimits:
    limits = QueueLimits(**{option.name: getattr(settings, option.name) for option in fields(QueueLimits)})
    most_bytes = limits.max_request_bytes or default_limit() // num_beside
    per_key = limits.max_request_bytes_per_key or most_bytes // 2
    return replace(limits, max_request_bytes=most_bytes, max_request_bytes_per_key=per_key)


def _sessions_folder(settings: ServerSettings, apart: str) -> SessionFolder | None:
    if settings.sessions_key is not None and settings.sessions_dir is None:
        raise ConfigError("--sessions-key signs the files of --sessions-dir, which is not given")
    if settings.sessions_dir is None:
        return None
    bounds = FolderLimits(settings.session_bytes_per_key, settings.session_bytes_in_all, settings.session_ttl)
    key = NO_KEY if settings.sessions_key is None else read_key(settings.sessions_key)
    return SessionFolder(Path(settings.sessions_dir), bounds, key, apart)
