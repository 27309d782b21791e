"""A process that compiles all kernels into the cache, beside the one that loads the model. Standard library only.

Owns that process. Invariant: what waits for a group goes on when the process is gone, and then compiles for itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from threading import Thread

from decoding.process.machine import cores


class Compiler:
    """Compiles from the moment it is made, and says of each group when it is done. It ends with the process that made
    it, whose starting thread has to live as long."""

    def __init__(self, groups: Sequence[str] = ()) -> None:
        """groups: none are those that every model may need."""
        command = (sys.executable, "-m", "decoding.engine.compiling", "--parent", str(os.getpid()), *groups)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._done: set[str] = set()
        # So that it leaves the table of processes when it ends, also where nobody waits for it yet.
        Thread(target=self._process.wait, name="compiler", daemon=True).start()

    def wait_for(self, group: str) -> None:
        """Until the group is compiled or nothing more will be."""
        while group not in self._done and self._hear():
            pass

    def finish(self) -> None:
        """Until it is gone."""
        while self._hear():
            pass
        self._process.wait()

    def close(self) -> None:
        """End it. What it has compiled stays."""
        self._process.kill()
        self._process.wait()

    def _hear(self) -> bool:
        """Whether it had something more to say."""
        said = self._process.stdout
        assert said is not None
        line = "" if said.closed else said.readline()
        if not line:
            said.close()
        self._done.add(line.strip())
        return bool(line)


def compile_side_by_side(groups: Sequence[str]) -> None:
    """In a process for each core. Returns when they are gone."""
    num_processes = min(len(groups), cores().usable)
    compilers = [Compiler(groups[place::num_processes]) for place in range(num_processes)]
    for compiler in compilers:
        compiler.finish()
