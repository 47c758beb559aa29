"""Type check the package in the layout it is imported in.

mypy does not see setuptools' package-dir mapping (methods/ imports as bench.methods), so it is shown a folder of links
in which every package is where its name says. The mistakes in ``typed_api.py`` show that a plug-in sees real types.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAPPED = ("methods", "datasets", "protocols")

with tempfile.TemporaryDirectory() as name:
    package = Path(name) / "bench"
    package.mkdir()
    for entry in (ROOT / "bench").iterdir():
        (package / entry.name).symlink_to(entry)
    for folder in MAPPED:
        (package / folder).symlink_to(ROOT / folder)
    (package / "published").symlink_to(ROOT / "results" / "published")
    (Path(name) / "probembed.py").symlink_to(ROOT / "probembed.py")
    (Path(name) / "typed_api.py").symlink_to(ROOT / ".ci" / "typed_api.py")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "bench"]
    command += ["-m", "probembed", "-m", "typed_api"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache")]
    code = subprocess.run(command, cwd=name, env={**os.environ, "MYPYPATH": name}).returncode
sys.exit(code)
