"""The tables of the study's page, which ``benchmarks/study.py`` computes without the package."""

import re
import subprocess
import sys
from pathlib import Path

import bench
import pytest
from bench.report.splits import MEAN

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results"
TABLES = (sys.executable, ROOT / "benchmarks" / "study.py", "tables")
pytestmark = pytest.mark.slow


def test_tables_and_figures_of_the_page_are_those_of_the_records(tmp_path: Path) -> None:
    docs = ROOT / "docs"
    text = (docs / "study.md").read_text("utf-8")
    page = tmp_path / "study.md"
    page.write_text(re.sub(r"(<!-- tables of \w+ -->\n\n).*?(?=\n\n<!-- end)", r"\1-", text, flags=re.DOTALL), "utf-8")
    subprocess.run(
        [*TABLES, RECORDS / "reference", RECORDS / "study", "--page", page, "--figures", tmp_path], check=True
    )
    assert page.read_text("utf-8") == text
    figures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert figures == sorted(set(re.findall(r"figures/(\w+\.svg)", text)))
    for name in figures:  # names, order of methods and limits of axes; places of points depend on fonts
        made, kept = (
            re.findall(r"<text[^>]*>([^<]+)<", (at / name).read_text("utf-8")) for at in (tmp_path, docs / "figures")
        )
        assert made == kept
        assert "At query time, crops" in made


def test_a_page_needs_the_records_of_every_row(tmp_path: Path) -> None:
    command = [*TABLES, RECORDS / "study" / "glyphs-both.tar.xz", "--page", tmp_path / "study.md"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "records of grocery, " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("archive", ["grocery-squeezenet", "cub200-squeezenet"])
def test_package_and_study_have_one_value_of_a_method(archive: str) -> None:
    path = RECORDS / "study" / f"{archive}.tar.xz"
    found = bench.results(path)._judged.splits
    means = {
        (each.contender.method, each.column.metric): f"{100 * each.mean:.1f}" for each in found if each.question == MEAN
    }
    text = subprocess.run([*TABLES, path], check=True, capture_output=True, text=True).stdout.partition("MAP@R and")[2]
    said = re.findall(r"`(\w+)`\s([\d.]+),\s([\d.]+)[;.]", text)
    assert {(name, "map_at_r"): value for name, value, _ in said} | {
        (name, "recall_at_1"): value for name, _, value in said
    } == means
