"""`python -m decoding.worker`: the process the server starts."""

from __future__ import annotations

import logging
import os
import sys

from decoding.worker.worker import main

if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except Exception:
        logging.exception("the worker ends")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # taking a model apart object by object takes seconds, and nobody is left to see it
