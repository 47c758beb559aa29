"""The tables of the study's page, which ``benchmarks/study.py`` computes without the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("records", ["reference", "study"])
def test_the_tables_of_the_page_are_those_of_the_records(records: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / "study.md"
    text = page.read_text("utf-8")
    archives = [path.name.removesuffix(".tar.xz") for path in (ROOT / "results" / records).glob("*.tar.xz")]
    of_these = re.compile(rf"<!-- tables of (?:{'|'.join(archives)}) -->.*?<!-- end -->", re.DOTALL)
    emptied = tmp_path / "study.md"
    emptied.write_text(of_these.sub(lambda found: re.sub(r"\n\| `.*", "", found[0]), text), "utf-8")
    command = [sys.executable, ROOT / "benchmarks" / "study.py", "tables", ROOT / "results" / records]
    subprocess.run([*command, "--page", emptied], check=True)
    assert emptied.read_text("utf-8") == text
