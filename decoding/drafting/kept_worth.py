"""What a server has learned of its draft model's or head's worth, kept between starts by pair of models, as costs are.

Owns the file's content. Knows nothing of requests. Invariant: what cannot have been learned counts as missing.
"""

from __future__ import annotations

import logging

import msgspec

from decoding.costs.trials import NumAsked, Trials
from decoding.model.kept.measurements import KeptMeasurements
from decoding.stores.acceptance_model import AcceptanceModel, rates_of, take_rates

logger = logging.getLogger("gander.engine")
Models = tuple[AcceptanceModel, AcceptanceModel]  # a server's, of greedy and of sampled requests


class Worth(msgspec.Struct, frozen=True):
    """rates: as of `rates_of`, of greedy and of sampled requests. num_asked: as of `Trials`."""

    rates: list[list[tuple[float, float]]]
    num_asked: list[NumAsked]

    @property
    def num_observed(self) -> list[float]:
        """Tokens that hit rates rest on."""
        return [count for (_, count), *_ in self.rates]


class KeptWorth:
    """kept: where it is kept, None for nowhere. pair: names target and draft model."""

    def __init__(self, kept: KeptMeasurements | None, pair: str) -> None:
        self._kept = kept
        self._pair = pair
        self._written: list[float] = []

    def restore(self, models: Models) -> Trials:
        """Take over what was last kept, if anything was; the trials that have been."""
        worth = self._kept.read(self._pair, Worth) if self._kept is not None else None
        if worth is None:
            return Trials()
        try:
            for model, rates in list(zip(models, worth.rates, strict=True)):
                take_rates(model, rates)
        except ValueError as error:
            logger.warning("What the draft model is worth is learned anew: %s.", error)
            return Trials()
        self._written = worth.num_observed
        return Trials(worth.num_asked)

    def keep(self, models: Models, trials: Trials) -> None:
        """Write what is known by now, if there is news."""
        worth = Worth([rates_of(model) for model in models], trials.num_asked)
        if self._kept is not None and worth.num_observed != self._written:
            self._kept.write(self._pair, worth)
            self._written = worth.num_observed
