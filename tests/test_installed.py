"""The distribution ``probembed``: what is built, and that it works where nothing else is installed."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bench import errors

import probembed
from tests.test_guards import FOLDERS, REFERENCE, ROOT, _our_files, _tracked


def _run(*command, cwd):
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of the tracked files, and the wheel made from that sdist."""
    out = tmp_path_factory.mktemp("built")
    for path in _tracked():
        target = out / "tree" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / path).read_bytes())
    done = _run("uv", "build", "--out-dir", out, out / "tree", cwd=out)
    assert done.returncode == 0, done.stderr
    return next(out.glob("probembed-*.whl")), next(out.glob("probembed-*.tar.gz"))


@pytest.mark.slow
def test_the_wheel_of_the_sdist_works_in_an_empty_environment_and_folder(built, tmp_path):
    wheel, _ = built
    pins = tmp_path / "pins.txt"  # the versions of the lock
    done = _run("uv", "export", "--locked", "--no-dev", "--no-emit-project", "--no-hashes", "-o", pins, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert _run("uv", "venv", "--python", sys.executable, "venv", cwd=tmp_path).returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    done = _run("uv", "pip", "install", "--python", python, "-c", pins, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()

    def bench(*words, command="bench"):
        done = _run(python.with_name(command), *words, cwd=empty)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert bench("--version") == bench("--version", command="probembed")
    rng = np.random.default_rng(0)
    np.savez(empty / "a.npz", embeddings=rng.normal(size=(40, 4)), labels=np.arange(40) % 5)
    assert "MAP@R" in bench("score", "a.npz")
    bench("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--seeds", "1", "--hparams", "default",
          "--set", "optim.epochs=1", "--results", "runs")  # fmt: skip
    assert (empty / "runs" / "metrics.csv").exists()
    bench("new", "method", "mine")
    assert "ok" in bench("test", "--method", "mine", "--plugin", "mine.py")
    (empty / "a.parquet").write_bytes(b"PAR1")
    done = _run(python.with_name("bench"), "score", "a.parquet", cwd=empty)
    assert "uv pip install 'probembed[parquet]'" in done.stderr


def test_the_sdist_makes_a_wheel_of_every_module_and_data_file_of_the_tree(built):
    wheel, sdist = built
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {"probembed.py"}
    for path in _our_files():
        if path.parts[:2] == REFERENCE:
            continue
        if path.suffix in (".py", ".csv", ".tmpl", ".toml", ".css", ".js", ".txt", ".lock") or path.name == "py.typed":
            wanted.add("/".join([FOLDERS[path.parts[0]], *path.parts[1:]]))
    assert held == wanted
    with tarfile.open(sdist) as archive:
        assert "LICENSE" in {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize(
    "foreign", ["__version__ = '5.2'\n", "import nowhere_to_be_found\n", "WHOSE = 'another'\n", None]
)
def test_a_foreign_package_named_bench_is_named_in_one_line(foreign, tmp_path):
    package = tmp_path / "bench"
    package.mkdir()
    if foreign is None:  # the foreign distribution was removed again, and its __init__.py with it
        (package / "start.py").write_text("def entry(): print('half of a package')\n")
    else:
        (package / "__init__.py").write_text(foreign)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import probembed; probembed.entry()"
    done = _run(sys.executable, "-P", "-c", code, "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"probembed: the package `bench` ({package}) is not that of probembed" in done.stderr


def test_both_commands_are_the_same():
    said = {name: _run(Path(sys.executable).with_name(name), "--version", cwd=ROOT) for name in ("bench", "probembed")}
    assert said["bench"].stdout == said["probembed"].stdout == f"{probembed.version('probembed')}\n"


def test_a_hint_names_the_command_that_installs_an_extra_here(tmp_path, monkeypatch):
    text = "HEIC needs pillow-heif: `pip install 'probembed[heic]'`"
    assert errors.installable(text) == "HEIC needs pillow-heif: `uv sync --inexact --extra heic`"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "bench" / "errors.py"))
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert errors.installable(text) == "HEIC needs pillow-heif: `uv pip install 'probembed[heic]'`"
    monkeypatch.setattr(errors, "find_spec", lambda name: name)
    assert errors.installable(text) == text
