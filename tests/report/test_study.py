"""The tables of the study's page, which ``benchmarks/study.py`` computes without the package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_the_tables_of_the_page_are_those_of_the_reference_records(tmp_path: Path) -> None:
    page = ROOT / "docs" / "study.md"
    text = page.read_text("utf-8")
    emptied = tmp_path / "study.md"
    emptied.write_text("\n".join(line for line in text.split("\n") if not line.startswith("| `")), "utf-8")
    command = [sys.executable, ROOT / "benchmarks" / "study.py", "tables", ROOT / "results" / "reference"]
    subprocess.run([*command, "--page", emptied], check=True)
    assert emptied.read_text("utf-8") == text
