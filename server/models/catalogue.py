"""The models of a server by name: which one a request means, and the states of all as one.

Invariant: a name is one model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from server.engine_client.status import EngineStatus, State
from server.http.errors import ApiError
from server.models.model import Model

WORST_FIRST: tuple[State, ...] = ("loading", "restarting", "silent")  # of the states in which requests are refused


class Catalogue:
    """models: the first is the default, for requests that name none."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = tuple(models)

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models)

    @property
    def default(self) -> Model:
        return self.models[0]

    @property
    def num_open(self) -> int:
        """How many requests have no end yet."""
        return sum(model.client.num_open for model in self.models)

    def find(self, name: str | None) -> Model:
        """The model of this name: one that is called so, or the first one that takes names of this form. Raises
        ApiError 404."""
        if name is None:
            return self.default
        called = (model for model in self.models if name in model.settings.model_names)
        found = next(called, None) or next((model for model in self.models if model.settings.serves(name)), None)
        if found is None:
            served = ", ".join(f"'{each}'" for model in self.models for each in model.settings.model_names)
            message = f"The model '{name}' does not exist here; this server has {served}."
            raise ApiError(404, message, "model", "model_not_found")
        return found

    @property
    def status(self) -> EngineStatus:
        """The server's: the worst one of the models that are to be there from the start, "ready" where each is or was
        unloaded again. A model that its first request loads makes the server no less ready, and the server has failed
        where all models were to be there and have failed."""
        preloaded = [model for model in self.models if model.is_preloaded]
        for states, models in ((("draining",), self.models), (WORST_FIRST, preloaded)):
            worst = next((each for state in states for each in models if each.status.state == state), None)
            if worst is not None:
                return self._told(worst)
        if all(model in preloaded and model.status.state == "failed" for model in self.models):
            return self._told(self.default)
        if len(self.models) == 1 and self.default.is_loaded:
            return self.default.status
        loaded = ", ".join(model.name for model in self.models if model.is_loaded)
        return EngineStatus(
            state="ready", sentence=f"serving {loaded}" if loaded else "no model is loaded", fraction=1.0
        )

    def _told(self, model: Model) -> EngineStatus:
        """A model's status as the server's."""
        status = model.status
        return status if len(self.models) == 1 else replace(status, sentence=f"{model.name}: {status.sentence}")
