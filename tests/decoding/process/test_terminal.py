"""SIGHUP before a server has handlers of its own: asked to read files again it lives on, without a terminal it ends."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

PROGRAM = """
import sys
from decoding.process.terminal import outlive_hangups
outlive_hangups()
print("ready", flush=True)
sys.stdin.readline()
print("alive", flush=True)
"""
SERVE = """
import os, signal, sys
import server.cli, server.process.runner
def run(*_arguments, **_named):
    os.kill(os.getpid(), signal.SIGHUP)
    return 7
server.process.runner.run = run
sys.argv = ["gander", "serve"]
server.cli.main()
"""


def test_a_process_without_a_terminal_outlives_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "alive\n"
    assert process.returncode == 0


def test_a_process_whose_terminal_is_open_outlives_it_and_one_whose_terminal_has_closed_ends() -> None:
    ours, theirs = os.openpty()
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, text=True
            )
        )
        os.close(theirs)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.poll() is None
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == -signal.SIGHUP


def test_a_server_that_is_starting_outlives_it() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GANDER_")}
    assert subprocess.run([sys.executable, "-c", SERVE], env=variables, stdin=subprocess.DEVNULL).returncode == 7
