"""A worker without an engine: the real sockets and messages, replies scripted by the prompt.

The last line of a prompt that is a JSON object is a script:
    say: the text to reply, then an end token · per_step: tokens a step · delay: seconds a step
    crash_after: steps until the process dies · crash_once: the same, but not for a reply that is resumed
    break_once: steps until it says that it broke, and lingers; not for a reply that is resumed
    fail, reject: end that way, with this message · code: of that end
    tell: reply with the request itself as JSON, or with the fields of it that are listed · preemptions: of the request
    progress: tokens of the prompt that are processed at each of the steps that come before the first token
    cached: tokens of the prompt that need not be run, one number for each choice of a call
Any other prompt gets letters drawn from its seed. An embedding is the prompt's token ids, again and again, from the
last one backwards unless it is a mean. Token ids are bytes; 256 is the end token. The log probability of token t is
-t / 100, its rank t, and the likeliest tokens are 0, 1, 2, ... Every tenant has the sessions it has used, each as large
as its longest prompt.
The model folder may hold fake.json: {"load_seconds", "load_gate": a file without which it is not loaded, "load_failed",
"crash_on_load", "context_note", "max_model_len", "fingerprint", "compiling": methods that are compiled once the first
request has come, "turns": see `turn_of`, "embedding_len"}.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import zmq

from decoding.core.events import Failed, Finished, Pooled, PromptLogprobs, PromptProgress, Rejected, Tokens, Traced
from decoding.core.request import FinishReason
from decoding.core.session_info import SessionInfo, SessionState
from decoding.core.stats import DraftCounts, EngineStats, MethodCounts, NodeHistogram, RequestStats, StepStats
from decoding.core.step_trace import NodeTrace, StepTrace
from decoding.core.token_logprobs import TokenLogprobs
from decoding.process.parent import end_with
from decoding.worker.calls import Call, Submit, request_of_call, shared_of
from decoding.worker.messages import (
    Abort,
    Batch,
    Beat,
    Broke,
    Compiling,
    CopySession,
    DeleteSession,
    Drain,
    FromWorker,
    HandedOver,
    HandOver,
    ListSessions,
    LoadFailed,
    LoadProgress,
    Ready,
    RestoreSession,
    SessionCopied,
    SessionDeleted,
    SessionKept,
    SessionRestored,
    Sessions,
    StepReport,
    ToWorker,
)
from decoding.worker.running_file import RunningFile

END_TOKEN = 256
VOCAB_SIZE = 257
MAX_MODEL_LEN = 4096
MAX_RUNNING = 32
KV_SLOTS = 1000
LINGER_SECONDS = 60
EMBEDDING_LEN = 8
LETTERS = b"abcdefghijklmnopqrstuvwxyz \n"


class Crash(Exception):
    """The script says that the process dies here."""


class Running:
    """One request and how far its script has come."""

    def __init__(self, submit: Submit, options: dict[str, Any]) -> None:
        self.submit = submit
        self.script = turn_of(submit.prompt, options["turns"]) if "turns" in options else read_script(submit.prompt)
        self.emitted = len(submit.resumed)
        self.tokens = islice(self._tokens(), self.emitted, None)
        self.steps = 0
        self.progress: list[int] = [] if submit.resumed else [*self.script.get("progress", [])]

    def _told(self, wanted: bool | list[str]) -> str:
        told = msgspec.to_builtins(self.submit)
        return msgspec.json.encode(told if wanted is True else {name: told[name] for name in wanted}).decode()

    def _tokens(self) -> Iterator[int]:
        text = self._told(self.script["tell"]) if self.script.get("tell") else self.script.get("say")
        if text is not None:
            yield from text.encode()
            yield END_TOKEN
        rng = random.Random(f"{self.submit.sampling.seed} {self.submit.prompt}")
        while True:
            yield rng.choice(LETTERS)

    @property
    def cached_tokens(self) -> int:
        counts = self.script.get("cached", [0])
        return int(counts[int(self.submit.request_id.rsplit("-", 1)[1]) % len(counts)])

    def step(self) -> list[FromWorker]:
        self.steps += 1
        request_id, script, sampling = self.submit.request_id, self.script, self.submit.sampling
        if self.steps == script.get("crash_after") or (
            self.steps == script.get("crash_once") and not self.submit.resumed
        ):
            raise Crash
        if self.steps == script.get("break_once") and not self.submit.resumed:
            return [Broke(error="the engine broke")]
        if "fail" in script:
            return [Failed(request_id=request_id, message=script["fail"], code=script.get("code"))]
        if "reject" in script:
            return [
                Rejected(
                    request_id=request_id, message=script["reject"], param="prompt", code=script.get("code", "refused")
                )
            ]
        if self.progress:
            processed = self.progress.pop(0)
            return [PromptProgress(request_id=request_id, processed=processed, cached=self.cached_tokens)]
        if self.submit.pooling is not None:
            ids = self.submit.prompt[:: 1 if self.submit.pooling == "mean" else -1]
            vector = struct.pack(f"<{EMBEDDING_LEN}f", *islice(cycle(ids), EMBEDDING_LEN))
            return [Pooled(request_id=request_id, vector=vector), self.finished(FinishReason.LENGTH)]
        token_ids: list[int] = []
        reason: FinishReason | None = None
        stop_token = None
        while len(token_ids) < script.get("per_step", 3) and not reason:
            token = next(self.tokens)
            token_ids.append(token)
            reason, stop_token = self._end(token, self.emitted + len(token_ids))
        self.emitted += len(token_ids)
        messages: list[FromWorker] = []
        if self.emitted == len(self.submit.resumed) + len(token_ids) and sampling.prompt_logprobs is not None:
            rest = token_logprobs(self.submit.prompt[1:], sampling.prompt_logprobs)
            messages.append(PromptLogprobs(request_id=request_id, logprobs=[None, *rest]))
        logprobs = None if sampling.logprobs is None else token_logprobs(token_ids, sampling.logprobs)
        if self.submit.speculation.trace is not None:
            messages.append(self.traced(len(token_ids)))
        messages.append(Tokens(request_id=request_id, token_ids=token_ids, logprobs=logprobs))
        return [*messages, self.finished(reason, stop_token)] if reason else messages

    def traced(self, num_tokens: int) -> Traced:
        sources = ["context"] * (num_tokens - 1) + ["bonus"]
        root = NodeTrace(65, -1, "root", ["root"], None, True)
        drafted = NodeTrace(66, 0, "context", ["context", "ngram"], -0.5, False)
        tree = [root, drafted] if self.submit.speculation.trace == "trees" else None
        trace = StepTrace(
            number=self.steps, method="spine", drafted=4, accepted=num_tokens - 1, sources=sources, tree=tree
        )
        request_id = self.submit.request_id
        return Traced(request_id=request_id, trace=trace, seconds=0.5, plain_seconds=1.0, prefill_rows=0)

    def _end(self, token: int, num_tokens: int) -> tuple[FinishReason | None, int | None]:
        sampling = self.submit.sampling
        stop_ids = {*sampling.stop_token_ids} | (set() if sampling.ignore_eos else {END_TOKEN})
        if token in stop_ids and num_tokens > sampling.min_tokens:
            return FinishReason.STOP, token
        return (FinishReason.LENGTH if num_tokens == sampling.max_tokens else None), None

    def finished(self, reason: FinishReason, stop_token_id: int | None = None) -> Finished:
        accepted = self.emitted - len(self.submit.resumed) - self.steps
        counts = DraftCounts(
            drafts=self.steps,
            drafted=4 * self.steps,
            accepted=accepted,
            drafted_by_source={"context": 4 * self.steps},
            accepted_by_source={"context": accepted},
            accepted_by_depth=[accepted],
        )
        stats = RequestStats(
            method="spine",
            reason="scripted",
            prompt_tokens=len(self.submit.prompt),
            cached_tokens=self.cached_tokens,
            preemptions=self.script.get("preemptions", 0),
            resumed_tokens=len(self.submit.resumed),
            emitted=self.emitted - len(self.submit.resumed),
            target_forwards=self.steps,
            prefill_chunks=1,
            counts=counts,
            foretold_by_source={"context": accepted, "ngram": 1},
            queue_seconds=0.001,
            decode_seconds=0.01 * self.steps,
            accepted_prediction_tokens=min(len(self.submit.prediction), 2),
            rejected_prediction_tokens=max(len(self.submit.prediction) - 2, 0),
        )
        return Finished(request_id=self.submit.request_id, reason=reason, stats=stats, stop_token_id=stop_token_id)


def token_logprobs(token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    top = tuple((token_id, -token_id / 100) for token_id in range(num_top))
    return [TokenLogprobs(token_id, -token_id / 100, token_id + 1, top) for token_id in token_ids]


def read_script(prompt: list[int]) -> dict[str, Any]:
    text = bytes(token for token in prompt if token < END_TOKEN)
    for line in reversed(text.splitlines()):
        try:
            script = json.loads(line)
        except ValueError:
            continue
        if isinstance(script, dict):
            return script
    return {}


def turn_of(prompt: list[int], turns: dict[str, Any]) -> dict[str, Any]:
    """The script of a conversation's next reply: the first of `replies`, pairs of a mark and a text, whose mark the
    prompt does not have, or `otherwise` where the prompt lacks `needs`."""
    text = bytes(token for token in prompt if token < END_TOKEN).decode()
    replies = [reply for mark, reply in turns["replies"] if mark not in text]
    say = replies[0] if turns["needs"] in text and replies else turns["otherwise"]
    return {"say": say, "per_step": turns["per_step"]}


class FakeWorker:
    def __init__(self, inbox: str, outbox: str, running: int, parent: int, config: dict[str, Any]) -> None:
        self._file = RunningFile(running)
        self._context = zmq.Context()
        self._inbox, self._outbox = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._inbox.bind(inbox)
        self._outbox.connect(outbox)
        self._decoder = msgspec.msgpack.Decoder(ToWorker)
        self._config = config
        self._running: dict[str, Running] = {}
        self._sessions: dict[tuple[str, str], int] = {}
        self._changed: set[tuple[str, str]] = set()
        self._is_draining = False
        self._parent = parent
        self._next_beat = 0.0

    def run(self) -> None:
        self._load()
        while not (self._is_draining and not self._running):
            self._read_inbox()
            if self._running:
                try:
                    self._step()
                except Crash:
                    self._crash()
            elif copies := self._copies():
                self._send(copies)
            if os.getppid() != self._parent:
                sys.exit(1)
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + 1
                self._send([Beat(busy_seconds=0.0)])
        self._outbox.close(linger=1000)

    def _load(self) -> None:
        path = Path(self._config["model"]) / "fake.json"
        self._options = options = json.loads(path.read_text()) if path.exists() else {}
        for part in range(4):
            self._send([LoadProgress(sentence=f"loading part {part}", fraction=part / 4)])
            time.sleep(options.get("load_seconds", 0) / 4)
        while "load_gate" in options and not Path(options["load_gate"]).exists() and os.getppid() == self._parent:
            time.sleep(0.01)
        if "load_failed" in options:
            self._send([LoadFailed(error=options["load_failed"])])
            self._outbox.close(linger=1000)
            sys.exit(1)
        if options.get("crash_on_load"):
            os._exit(4)
        ready = Ready(
            model="fake",
            max_model_len=options.get("max_model_len", MAX_MODEL_LEN),
            model_context_len=(2 if "context_note" in options else 1) * options.get("max_model_len", MAX_MODEL_LEN),
            context_note=options.get("context_note"),
            max_running=self._config["max_running"] or MAX_RUNNING,
            max_batch_rows=self._config["max_batch_rows"] or 512,
            kv_slots=self._room(options),
            expected_bytes=3 * 2**30,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[END_TOKEN],
            methods=["none", "spine"],
            max_nodes=self._config["max_nodes"],
            dtype="float32",
            weights="float32",
            device="cpu",
            attention="exact",
            is_exact=True,
            load_seconds=0.1,
            parameters=1,
            fingerprint=options.get("fingerprint", "fp_fake"),
            identity=options.get("identity", "id_fake"),
            embedding_len=options.get("embedding_len", EMBEDDING_LEN),
        )
        ready = msgspec.structs.replace(ready, **options.get("ready", {}))
        if "exact_noted" in options:
            with Path(options["exact_noted"]).open("a") as file:
                file.write(f"{self._config['exact']}\n")
        if "compiling" in options:
            self._send([Compiling(methods=options["compiling"])])
        self._is_compiling = "compiling" in options
        self._send([ready])

    def _room(self, options: dict[str, Any]) -> int:
        """As much as an earlier process had, unless less is free by then."""
        kept = self._config["kept_slots"]
        return KV_SLOTS if kept is None else min(kept, options.get("free_slots", kept))

    def _read_inbox(self) -> None:
        while self._inbox.poll(0 if self._running else 200):
            message = self._decoder.decode(self._inbox.recv())
            match message:
                case Call():
                    if self._is_compiling:
                        self._is_compiling = False
                        self._send([Compiling(methods=[])])
                    shared = shared_of(message)
                    for choice in message.choices:
                        self._begin(request_of_call(message, shared, choice))
                case Abort():
                    aborted = self._running.pop(message.request_id, None)
                    if aborted is not None:
                        self._send([aborted.finished(FinishReason.ABORT)])
                case ListSessions():
                    self._send([Sessions(id=message.id, sessions=list(self._infos(message.tenant)))])
                case DeleteSession():
                    size = self._sessions.pop((message.tenant, message.session_id), None)
                    self._send([SessionDeleted(id=message.id, found=size is not None)])
                case CopySession():
                    self._send([SessionCopied(id=message.id, state=self._state(message.tenant, message.session_id))])
                case RestoreSession():
                    self._restore(message)
                case HandOver():
                    self._send([*self._copies(), HandedOver(id=message.id)])
                case Drain():
                    self._is_draining = True
                    return

    def _begin(self, submit: Submit) -> None:
        name = submit.tenant, submit.session_id
        self._changed.add(name)
        self._sessions[name] = max(self._sessions.get(name, 0), len(submit.prompt))
        self._running[submit.request_id] = Running(submit, self._options)

    def _state(self, tenant: str, session_id: str) -> SessionState | None:
        size = self._sessions.get((tenant, session_id))
        return None if size is None else SessionState(tenant, session_id, {"context": [bytes(size)]})

    def _copies(self) -> list[FromWorker]:
        states = [self._state(*name) for name in sorted(self._changed)]
        self._changed.clear()
        return [SessionKept(state=state) for state in states if state is not None]

    def _restore(self, message: RestoreSession) -> None:
        state = message.state
        is_one = set(state.stores) == {"context"}
        if is_one:
            name = state.tenant, state.session_id
            self._sessions[name] = state.num_bytes if message.replaces else self._sessions.get(name, state.num_bytes)
        self._send([SessionRestored(id=message.id, problem=None if is_one else "it has no context")])

    def _infos(self, tenant: str | None) -> Iterator[SessionInfo]:
        for (owner, session_id), size in self._sessions.items():
            if tenant in (None, owner):
                yield SessionInfo(
                    tenant=owner,
                    session_id=session_id,
                    num_bytes=size,
                    idle_seconds=0.5,
                    store_bytes={"context": size},
                )

    def _step(self) -> None:
        self._file.write([*self._running])
        time.sleep(max(running.script.get("delay", 0.0) for running in self._running.values()))
        messages: list[FromWorker] = []
        requests = len(self._running)
        started = [running for running in self._running.values() if not running.steps]
        for request_id, running in list(self._running.items()):
            news = running.step()
            messages += news
            if not isinstance(news[-1], Tokens | PromptProgress):
                del self._running[request_id]
        requests -= sum(isinstance(message, PromptProgress) for message in messages)
        emitted = sum(len(message.token_ids) for message in messages if isinstance(message, Tokens))
        nodes = NodeHistogram()
        for _ in range(requests):
            nodes.add(4)
        step = StepStats(
            rows=5 * requests,
            prefill_rows=0,
            step_seconds=0.001,
            plain_seconds=0.002,
            prefix_queries=sum(len(running.submit.prompt) for running in started),
            prefix_hits=sum(running.cached_tokens for running in started),
            preemptions=sum(running.script.get("preemptions", 0) for running in started),
            phase_seconds={"forward": 0.0008, "draft": 0.0002},
            counts_by_method={
                "spine": MethodCounts(
                    forwards=requests,
                    emitted=emitted,
                    budgets=nodes,
                    trees=nodes,
                    drafts=requests,
                    drafted=4 * requests,
                    accepted=emitted - requests,
                    drafted_by_source={"context": 4 * requests},
                    accepted_by_source={"context": emitted - requests},
                    accepted_by_depth=[emitted - requests],
                )
            },
        )
        self._send([*messages, StepReport(steps=[step], engine=self._engine_stats())])
        if any(isinstance(message, Broke) for message in messages):
            time.sleep(LINGER_SECONDS)

    def _engine_stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=0,
            slots_used=10 * len(self._running),
            slots_cached=20,
            slots_total=KV_SLOTS,
            sessions=1,
            session_bytes=1000,
            resident_bytes=2000,
        )

    def _crash(self) -> None:
        """Die once all that was sent is on its way: the tests count on it."""
        self._context.destroy(linger=1000)
        os._exit(3)

    def _send(self, messages: list[FromWorker]) -> None:
        self._outbox.send(msgspec.msgpack.encode(Batch(messages)))


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--inbox", "--outbox"):
        parser.add_argument(flag, required=True)
    for flag in ("--running", "--parent"):
        parser.add_argument(flag, required=True, type=int)
    parser.add_argument("--patient", action="store_true")
    arguments = vars(parser.parse_args())
    arguments.pop("patient")
    end_with(arguments["parent"])
    line = sys.stdin.readline()
    if line:
        FakeWorker(**arguments, config=json.loads(line)).run()


if __name__ == "__main__":
    main()
