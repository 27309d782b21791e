"""Between a step's launch and its wait the host is free: what can wait of the step before is done then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from decoding.cache.batch import StepBatch
from decoding.engine.sequence import Sequence as Running
from decoding.engine.start import start_engine
from decoding.model.device.runner import Forward, Runner
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.sampler import HostDrawing
from tests.pairs import CONFIG, GREEDY, prompt_of, reply, request_of, target_of

SMALL = replace(CONFIG, max_batch_rows=48, max_nodes=8)
LONG = 150  # tokens of a prompt, which several steps run


@dataclass
class LateDevice:
    """A device that is through with a step when it is waited for: until then its logits are not numbers."""

    runner: Runner
    log: list[str] = field(default_factory=list)

    def launch(self, batch: StepBatch) -> Forward:
        self.log.append("launch")
        forward = self.runner.launch(batch)
        self.real_RV = forward.logits_RV
        return Forward(torch.full_like(self.real_RV, float("nan")), forward.seconds)


@dataclass
class LateSampler:
    device: LateDevice

    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> LateDrawing:
        self.device.log.append("draw")
        return LateDrawing(self.device, logits_RV, HostDrawing(logits_RV, asked))


@dataclass
class LateDrawing:
    device: LateDevice
    logits_RV: torch.Tensor
    drawing: HostDrawing
    is_there: bool = False
    roots: None = None

    def collect(self, place: int) -> Drawn:
        if not self.is_there:
            self.device.log.append("wait")
            self.logits_RV.copy_(self.device.real_RV)
            self.is_there = True
        return self.drawing.collect(place)


def test_what_can_wait_is_done_while_a_device_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    prompts = {"short": prompt_of(20, 1), "long": prompt_of(LONG, 2)}
    plain = start_engine(target, SMALL)
    expected = {name: reply(plain, request_of("plain", prompt)) for name, prompt in prompts.items()}
    engine = start_engine(target, SMALL)
    device = LateDevice(engine._runner)
    engine._runner, engine.sampler = device, LateSampler(device)
    learn = Running.learn_prompt

    def noted(self: Running, end: int, *rest: object) -> None:
        device.log.append(f"learn {self.request.id} {end}")
        learn(self, end, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Running, "learn_prompt", noted)
    requests = [request_of(name, prompt, GREEDY, "spine") for name, prompt in prompts.items()]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step(lambda: device.log.append("caller"))
    assert {request.id: request.output.tolist() for request in requests} == expected
    steps = [step.split(", ") for step in ", ".join(device.log).split("launch, ")[1:]]
    beside = [event for step in steps for event in step[2 : step.index("wait")]]
    afterwards = [event for step in steps for event in step[step.index("wait") + 1 :]]
    assert all(step[:2] == ["draw", "caller"] and step.count("wait") == 1 for step in steps)
    assert len(beside) > 2, "chunks of the long prompt but the last"
    assert all(event.startswith("learn long") for event in beside)
    assert {f"learn {name} {len(prompt) - 1}" for name, prompt in prompts.items()} <= set(afterwards)
