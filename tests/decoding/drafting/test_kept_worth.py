"""What a draft model is worth is read back for its pair of models; what cannot be read is learned anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoding.costs.trials import Trials
from decoding.drafting.kept_worth import KeptWorth, Worth
from decoding.model.kept.measurements import KeptMeasurements
from decoding.stores.acceptance_model import learn_hit, measured_models, rates_of


def test_it_is_there_for_the_same_pair_alone(tmp_path: Path) -> None:
    kept, models, trials = KeptMeasurements(tmp_path), measured_models(), Trials()
    for model in models:
        learn_hit(model, False, False)
    trials.note_asked(True, 0.5)
    KeptWorth(kept, "a pair").keep(models, trials)
    again = measured_models()
    assert KeptWorth(kept, "a pair").restore(again).num_asked == trials.num_asked
    assert [rates_of(model) for model in again] == [rates_of(model) for model in models]
    other = measured_models()
    assert KeptWorth(kept, "another pair").restore(other).num_asked == []
    assert rates_of(other[0]) != rates_of(models[0])


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    models, trials, worth = measured_models(), Trials(), KeptWorth(KeptMeasurements(tmp_path), "a pair")
    learn_hit(models[0], True, False)
    worth.keep(models, trials)
    (file,) = tmp_path.iterdir()
    file.unlink()
    worth.keep(models, trials)
    assert not list(tmp_path.iterdir())
    learn_hit(models[1], True, False)
    worth.keep(models, trials)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("rates", [[], [[(0.5, 4.0)] * 3], [[(2.0, 4.0)] * 3] * 2])
def test_numbers_that_were_not_learned_count_as_missing(tmp_path: Path, rates: list[list[tuple[float, float]]]) -> None:
    kept, models = KeptMeasurements(tmp_path), measured_models()
    kept.write("a pair", Worth(rates, [(False, 1, 3)]))
    assert KeptWorth(kept, "a pair").restore(models).num_asked == []
    assert rates_of(models[0]) == rates_of(measured_models()[0])


def test_nowhere_is_no_failure() -> None:
    models, trials, worth = measured_models(), Trials(), KeptWorth(None, "a pair")
    worth.keep(models, trials)
    assert worth.restore(models).num_asked == []
