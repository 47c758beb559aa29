"""Hooks of mkdocs: pages that are outside docs/, links between them, and the layout of the package for its API page.

The README and the other pages at the root are written for readers of the repository. Here they become pages of the
site, and their links are changed to match. ``mkdocstrings`` does not see setuptools' package-dir mapping (methods/
imports as bench.methods), so it is shown a folder of links in which every package is where its name says.
"""

import re
import shutil
import tempfile
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Pages outside docs/, by their place in the repository, and their names in the site."""

SCRIPTS = tuple(sorted((ROOT / "examples").glob("*.py")))
FILES = (ROOT / "CITATION.cff", *sorted(p for p in (ROOT / "examples" / "cluster").rglob("*") if p.is_file()))
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
    """Add the pages outside docs/, the scripts that they show, and the files that they link to."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "examples/README.md":
            text += "".join(
                f"\n## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n" for path in SCRIPTS
            )
        files.append(File.generated(config, page, content=_relinked(text, Path(source).parent)))
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
