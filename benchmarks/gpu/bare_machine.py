"""Try this checkout on a GPU machine without a network that has Python 3.12 and PyTorch, in under ten minutes.

    uv run python benchmarks/gpu/bare_machine.py pack bench-gpu.tar.gz      here: the last commit, and wheels from PyPI
    tar xzf bench-gpu.tar.gz && python3 bench-gpu/there.py --out results    there

``there.py`` is a copy of this file. It runs ``bench doctor`` and the tests of GPUs, real (``-m gpu``) and simulated,
and prints Markdown for ``docs/measurements.md``; logs are in ``--out``. The archive has what bench needs besides torch,
torchvision, timm, typer, jinja2, pandas, scipy, scikit-learn, safetensors and matplotlib; the tests need pytest,
pytest-xdist and hypothesis. Standard library only.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

LIMIT = 60_000_000
"""Most bytes of the archive."""

WHEELS = (
    "optuna", "alembic", "sqlalchemy", "mako", "colorlog", "faiss-cpu", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "platformdirs", "rich", "filelock",
)  # fmt: skip
"""What the machine lacks, or may have in a version that is too old."""

PLATFORMS = [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "1")]

TESTS = (
    "tests/engine/test_gpu_device.py",
    "tests/engine/test_gpu.py",
    "tests/engine/test_gpu_faults.py",
    "tests/protocols/test_search.py",
)


def pack(archive: Path, python: str) -> None:
    """Write the archive, of at most :data:`LIMIT` bytes."""
    root = Path(__file__).resolve().parents[2]
    with (root / "uv.lock").open("rb") as file:
        locked = {package["name"]: package["version"] for package in tomllib.load(file)["package"]}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:gz") as out:
        wheels = Path(folder) / "wheels"
        platforms = [part for tag in PLATFORMS for part in ("--platform", tag)]
        pip = ["uvx", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
        pins = [f"{name}=={locked[name]}" for name in WHEELS]
        subprocess.run([*pip, "--python-version", python, *platforms, "-d", str(wheels), *pins], check=True)
        # Of the commit, as the tree that goes with it.
        tree = subprocess.run(
            ["git", "archive", "--prefix=tree/", "HEAD", "--", ".", ":(exclude)results/reference"],
            cwd=root, check=True, capture_output=True,
        ).stdout  # fmt: skip
        with tarfile.open(fileobj=io.BytesIO(tree)) as own:
            own.extractall(folder, filter="data")
        subprocess.run(["uv", "build", "-q", "--wheel", "-o", str(wheels)], cwd=f"{folder}/tree", check=True)
        for waste in ("build", "probembed.egg-info"):
            subprocess.run(["rm", "-rf", f"{folder}/tree/{waste}"], check=True)
        (Path(folder) / "there.py").write_bytes(Path(__file__).read_bytes())
        for name in ("wheels", "tree", "there.py"):
            out.add(Path(folder) / name, f"bench-gpu/{name}")
    size = archive.stat().st_size
    print(f"{archive}: {size / 1e6:.1f} MB")
    if size > LIMIT:
        archive.unlink()
        raise SystemExit(f"at most {LIMIT / 1e6:.0f} MB may travel")


class Machine:
    """The other machine: commands there, each with a part of the time that is left."""

    def __init__(self, device: str, minutes: float, out: Path) -> None:
        self.device, self.out = device, out.resolve()
        self.end = time.monotonic() + 60 * minutes
        self.root = Path(__file__).resolve().parent
        self.work = Path(tempfile.mkdtemp(prefix="bench-gpu-"))
        self.out.mkdir(parents=True, exist_ok=True)
        site = self.work / "site"
        self.environment = {
            **os.environ, "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1", "BENCH_CACHE": str(self.work / "cache"),
            "PATH": f"{site / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120",
        }  # fmt: skip

    def run(self, name: str, seconds: float, *command: str) -> bool:
        """Run a command in the tree, with its output in a log, for so many seconds at most; True if it succeeded."""
        seconds, start = min(seconds, self.end - time.monotonic()), time.monotonic()
        if seconds < 5:
            print(f"{name}: no time is left", flush=True)
            return False
        with (self.out / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=self.root / "tree", env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code: int | str = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
                code = process.wait() and f"ended after {seconds:.0f} s"
        print(f"{name}: {code or 'ok'}, {time.monotonic() - start:.0f} s", flush=True)
        return code == 0

    def python(self, name: str, seconds: float, *arguments: str) -> bool:
        """Run Python, whose path does not begin with the tree: its folders are no packages."""
        return self.run(name, seconds, sys.executable, "-P", *arguments)

    def install(self) -> None:
        """Put the wheels into a folder of their own."""
        wheels = [str(path) for path in sorted((self.root / "wheels").glob("*.whl"))]
        pip = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(self.work / "site"))
        if not self.python("install", 60, *pip, *wheels):
            raise SystemExit((self.out / "install.log").read_text())

    def doctor(self, seconds: float) -> Iterator[str]:
        """What ``bench doctor`` says, as a list."""
        path = self.out / "doctor.json"
        self.python("doctor", seconds, "-m", "bench", "doctor", "--device", self.device, "--out", str(path))
        report = json.loads(path.read_text()) if path.exists() else {}
        yield from (f"- {line}" for line in report.get("checks", ()))
        if report.get("failed"):
            yield f"- FAIL: {report['failed']}"


def there(device: str, minutes: float, out: Path) -> None:
    """Run everything on the other machine and print the figures."""
    machine, total = Machine(device, minutes, out), 60 * minutes
    machine.install()
    lines = ["## On a GPU", "", *machine.doctor(0.15 * total), ""]
    # The tests of one file in one process: those of the real GPU need its memory for themselves.
    options = ("-q", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-n", "4",
               "--dist", "loadfile", "-m", "gpu or not slow")  # fmt: skip
    machine.python("tests", 0.75 * total, "-m", "pytest", *options, *TESTS)
    said = (out / "tests.log").read_text().split("\n") if (out / "tests.log").exists() else []
    lines += ["", "Tests: " + next((line for line in reversed(said) if line), "none")]
    text = "\n".join(lines) + "\n"
    (out / "measurements.md").write_text(text)
    print("\n" + text)


def main() -> None:
    """Pack, or run what was packed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if (Path(__file__).parent / "wheels").exists():
        parser.add_argument("--out", type=Path, default=Path("results"), help="folder of logs")
        parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
        parser.add_argument("--minutes", type=float, default=9.5)
        a = parser.parse_args()
        there(a.device, a.minutes, a.out)
        return
    parser.add_argument("command", choices=("pack",))
    parser.add_argument("archive", type=Path)
    parser.add_argument("--python", default="3.12", help="version there")
    a = parser.parse_args()
    pack(a.archive, a.python)


if __name__ == "__main__":
    main()
