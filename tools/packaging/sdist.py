"""Makes the source archive."""

import os
import subprocess
import sys

import wheel


def make_sdist(out, folder, epoch):
    """Writes the archive into `out` and returns its path. The build system
    makes it from the files that git tracks, sorted, without owners, with one
    time."""
    python = wheel.environment_of(sys.executable, folder)
    out.mkdir(parents=True, exist_ok=True)
    said = subprocess.run(
        [python, "-c", "import sys\nfrom scikit_build_core import build\n"
         "print(build.build_sdist(sys.argv[1]))", out],
        check=True, cwd=wheel.ROOT, text=True, stdout=subprocess.PIPE,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC"}).stdout
    return out / said.split()[-1]
