"""`python -m decoding.worker.shard`: the process of a rank of a divided model, which a worker, rank 0, starts.

It reads its configuration from its standard input, loads its share, and does what rank 0 says until it is ended.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from decoding.process.parent import end_with
from decoding.worker.allocator import settle_allocator

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A rank of a divided model; started by a worker.")
    parser.add_argument("--parent", required=True, type=int, help="process id of rank 0")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--folder", required=True, type=Path, help="where the ranks find each other")
    parser.add_argument("--ring", required=True, type=int, nargs=3, help="descriptors of the ring of orders")
    arguments = parser.parse_args()
    end_with(arguments.parent)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as rank 0 does
    settle_allocator()  # before there are threads
    import msgspec
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from decoding.config import EngineConfig
    from decoding.model.parallel.follower import Follower
    from decoding.model.parallel.ring import ReaderEnd, RingReader

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    disable_progress_bar()
    set_verbosity_error()
    config = msgspec.json.decode(sys.stdin.read(), type=EngineConfig)
    ring = RingReader(ReaderEnd(*arguments.ring))
    try:
        Follower.load(config, arguments.rank, arguments.folder, ring).run()
    except Exception:
        logging.getLogger("gander.shard").exception("rank %d ends, and with it its worker", arguments.rank)
    logging.shutdown()
    os._exit(1)
