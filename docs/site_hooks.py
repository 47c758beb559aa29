"""Hooks of mkdocs: pages outside docs/, links between them, pages made from code and records, and the package's layout.

The README and the other pages at the root are written for readers of the repository. Here they become pages of the
site, and their links are changed to match. ``mkdocstrings`` does not see setuptools' package-dir mapping (methods/
imports as bench.methods), so it is shown a folder of links in which every package is where its name says.
"""

import contextlib
import inspect
import io
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

from bench.cli import main
from bench.protocols.known_tests import BUILT_IN, load_tests
from bench.protocols.metrics import METRICS
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "results/study/README.md": "study_records.md",
    "results/study/PLAN.md": "study_plan.md",
}
"""Pages outside docs/, by their place in the repository, and their names in the site."""

SCRIPTS = tuple(sorted((ROOT / "examples").glob("*.py")))
FILES = (
    ROOT / "CITATION.cff",
    ROOT / "examples" / "first_hour.ipynb",
    *sorted(p for p in (ROOT / "examples" / "cluster").rglob("*") if p.is_file()),
)
"""Files outside docs/ that pages link to as they are."""

_MAPPED = ("methods", "datasets", "protocols", "results")
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)]*)?\))")
_temporary: list[str] = []


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config):
    """Give mkdocstrings the folder in which the packages are where their names say."""
    folder = tempfile.mkdtemp()
    _temporary.append(folder)
    package = Path(folder) / "bench"
    package.mkdir()
    for entry in (ROOT / "bench").iterdir():
        (package / entry.name).symlink_to(entry)
    for name in _MAPPED:
        (package / name).symlink_to(ROOT / name)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [folder]
    config.watch.extend(str(ROOT / page) for page in PAGES)
    return config


def on_files(files, config):
    """Add the pages outside docs/, the page of claims, the scripts that they show, and the files that they link to."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "examples/README.md":
            text += "".join(
                f"\n## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n" for path in SCRIPTS
            )
        files.append(File.generated(config, page, content=_relinked(text, Path(source).parent)))
    files.append(File.generated(config, "metrics.md", content=_metrics_page()))
    files.append(File.generated(config, "claims.md", content=_claims()))
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, **_):
    """Change the links of pages of docs/ to pages outside it."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return _relinked(markdown, Path("docs"))


def on_post_build(**_):
    """Remove the folder of links."""
    while _temporary:
        shutil.rmtree(_temporary.pop())


@cache
def _claims():
    """The page of claims, judged by the reference results."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        assert main(["paper", "claims", "--results", str(ROOT / "results" / "reference"), "--out", folder]) == 0
        return (Path(folder) / "claims.md").read_text(encoding="utf-8")


def _relinked(text, folder):
    """Text with its links to files of the repository changed to links between pages."""

    def changed(match):
        before, target, after = match.groups()
        if "://" in target:
            return match[0]
        path = (ROOT / folder / target).resolve().relative_to(ROOT).as_posix()
        if path in PAGES:
            return before + PAGES[path] + after
        if path.startswith("docs/"):
            return before + path.removeprefix("docs/") + after
        if path.startswith("examples/") and path.endswith(".py"):
            return f"{before}examples.md#{Path(path).name.replace('.', '')})"
        return before + path + after

    return _LINK.sub(changed, text)


def _metrics_page():
    """The page that lists every built-in metric, and says what every test does."""
    lines = [
        "# Metrics",
        "",
        "Every metric of the tidy table, then what each test does, from `protocols/`. Values are fractions, printed",
        "in percent if the unit is a share. `bench score --metrics` takes the names in the column *asked as*, or a",
        "metric's own; those without a name there are computed whenever there is a confidence. *Region*: two methods",
        "that differ by less are practically equivalent ([verdicts](protocol.md#statistics)); it is our convention.",
        "",
        "| metric | title | of | better | unit | range | region | asked as | definition |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        asked_as = f"`{metric.asked_as or metric.group}`" if metric.has_request else ""
        bounds = f"[{metric.low:g}, {metric.high:g}]".replace("inf]", "inf)")
        region = f"{metric.equivalence:g}" if metric.equivalence else ""
        cells = [f"`{metric.name}`", metric.title, metric.of, metric.better or "neither", metric.unit, bounds, region]
        lines.append(f"| {' | '.join([*cells, asked_as, metric.source])} |")
    for test in load_tests(BUILT_IN):
        text = inspect.getdoc(test.run).partition("\nExample")[0]
        lines += ["", f"## {test.group}", "", re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)]
    return "\n".join(lines) + "\n"
