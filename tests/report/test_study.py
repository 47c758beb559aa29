"""The tables of the study's page, which ``benchmarks/study.py`` computes without the package."""

import re
import subprocess
import sys
from pathlib import Path

import bench
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


@pytest.mark.parametrize("archive", ["grocery-squeezenet", "cub200-squeezenet"])
def test_page_and_study_have_one_value_of_a_method(archive: str) -> None:
    found = bench.results(ROOT / "results" / "study" / f"{archive}.tar.xz")._judged.splits
    means = {
        (each.contender.method, each.column.metric): f"{100 * each.summary.mean:.1f}"
        for each in found
        if not each.against and not each.question
    }
    text = (ROOT / "docs" / "study.md").read_text("utf-8").partition(f"<!-- tables of {archive} -->")[2]
    said = re.findall(r"`(\w+)`\s([\d.]+),\s([\d.]+)[;.]", text[: text.index("<!-- end -->")])
    assert {(name, "map_at_r"): value for name, value, _ in said} | {
        (name, "recall_at_1"): value for name, _, value in said
    } == means
