"""What the self-test of an earlier start found of the same model, run the same way: it would find the same again.

Knows no model. Invariant: only what passed is kept, and any edit of our sources forgets it.
"""

from __future__ import annotations

import hashlib

import torch

from decoding.config import EngineConfig
from decoding.kernels.cache import PACKAGE, completed_name
from decoding.model.checkpoint import fingerprint
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.self_test import SelfTestReport


class EarlierTest:
    """report: of that start; None where there was none. On a device every start tests, since its compiler and driver
    are not ours to name."""

    def __init__(
        self, identity: str, config: EngineConfig, device: torch.device, kept: KeptMeasurements | None
    ) -> None:
        self._kept = kept if device.type == "cpu" else None
        self.report: SelfTestReport | None = None
        if self._kept is not None:
            instructions = completed_name(PACKAGE), torch.backends.cpu.get_cpu_capability()
            self._name = fingerprint(device, identity, config, instructions, _hash_of_sources())
            self.report = self._kept.read(self._name, SelfTestReport)

    def keep(self, report: SelfTestReport) -> SelfTestReport:
        """The same report, which later starts have if all is well."""
        if self._kept is not None and report.is_exact and report.on_any_threads:
            self._kept.write(self._name, report)
        return report


def _hash_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
