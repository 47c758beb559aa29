"""The complete plug-in of the README passes its check, and what is written from the code is current."""

import re
from pathlib import Path

import pytest
from bench.registry import import_file

ROOT = Path(__file__).parents[2]


def test_the_list_of_options_is_current():
    table = import_file(ROOT / ".ci" / "option_table.py")
    text = table.PAGE.read_text(encoding="utf-8")
    assert "`--tune-for <retrieval|confidence|both>`" in table.current("")
    assert table.current(text) == text, "type: uv run python .ci/option_table.py"


@pytest.mark.slow
def test_the_method_of_the_readme_passes_its_check_and_runs(cli, tmp_path):
    """Fault A1: the "complete" method of the README failed `bench test`."""
    blocks = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert set(blocks) == {"tiny.py"}
    (tmp_path / "tiny.py").write_text(blocks["tiny.py"])
    assert "tiny" in cli("test", "--method", "tiny", "--plugin", "tiny.py").stdout
    asked = ("--method", "tiny", "--dataset", "ndigit_smoke", "--plugin", "tiny.py", "--workers", "1")
    cli("run", *asked, "--hparams", "default", "--seeds", "1", "--set", "optim.epochs=1")
    assert ",tiny," in (tmp_path / "results" / "runs" / "metrics.csv").read_text()
