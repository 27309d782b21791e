"""`python -m decoding.sampling.grammar TOKENIZER LIMITS` reads grammars and writes each one's `Outcome`, as JSON lines.

Each grammar is compiled in a forked process, which the kernel kills at the limits. The command ends with its input, so
it outlives the worker by no more than one trial.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

import msgspec

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.process.machine import address_bytes, limit_addresses
from decoding.sampling.grammar.source import TokenizerFile, matcher_of, reason_of
from decoding.sampling.grammar.trial import Outcome, TrialLimits

OUT_OF_MEMORY = 1  # exit status
ENDED = (-signal.SIGKILL, -signal.SIGTERM)  # statuses of a process that the system, or a person, ended
KIB = 1024  # of `ru_maxrss`


def try_out(grammar: Grammar, tokenizer: Any, limits: TrialLimits) -> Outcome:
    """Compile a grammar in a fork; the outcome says its size, or why it is refused."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, msgspec.json.encode(_compile(grammar, tokenizer, limits)))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 0:
        return msgspec.json.decode(said, type=Outcome)
    if status in ENDED:
        return Outcome(was_ended=True)
    return Outcome(f"the {grammar.kind} grammar {_cause(status, limits)}")


def _cause(status: int, limits: TrialLimits) -> str:
    if status == -signal.SIGPROF:
        return f"takes more than {limits.seconds:g} seconds to compile"
    if status in (-signal.SIGABRT, OUT_OF_MEMORY):  # Rust aborts if an allocation fails
        return f"takes more than {limits.num_bytes >> 20} MiB to compile"
    return f"broke the compiler, which left with status {status}"


def _compile(grammar: Grammar, tokenizer: Any, limits: TrialLimits) -> Outcome:
    """Runs in the fork. num_bytes: the growth of resident memory by compiling and computing a first mask."""
    _set(limits)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        matcher = matcher_of(grammar, tokenizer).deep_copy()
        matcher.compute_bitmask()
        matcher.compute_ff_tokens()
        if matcher.is_error():
            return Outcome(f"the {grammar.kind} grammar lets no reply begin: {reason_of(matcher)}")
    except RequestRejected as error:
        return Outcome(error.message)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:  # a panic in llguidance is not an Exception
        return Outcome(f"the {grammar.kind} grammar cannot be compiled: {error}")
    signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(num_bytes=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * KIB)


def _set(limits: TrialLimits) -> None:
    limit_addresses(address_bytes() + limits.num_bytes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)


def main() -> None:
    tokenizer = msgspec.json.decode(sys.argv[1], type=TokenizerFile).load()
    limits = msgspec.json.decode(sys.argv[2], type=TrialLimits)
    decoder = msgspec.json.Decoder(Grammar)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(try_out(decoder.decode(line), tokenizer, limits)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
