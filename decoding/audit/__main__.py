"""`python -m decoding.audit [TYPES...]`."""

from __future__ import annotations

import sys

from decoding.audit.audit import main

sys.exit(main(sys.argv[1:]))
