"""What `bench new` writes and the plug-in of the README pass their checks and run as they are."""

import re
from pathlib import Path

import pytest
import torch
from bench.commands.new import write_template
from bench.registry import import_file


@pytest.fixture
def new(tmp_path, cli):
    """Write a template; gives its file."""

    def write(kind, name):
        cli("new", kind, name)
        return tmp_path / f"{name}.py"

    return write


@pytest.mark.slow
def test_templates_pass_their_checks(cli, new):
    cli("test", "--method", "mine", "--plugin", new("method", "mine"))
    cli("test", "--dataset", "sets", "--plugin", new("dataset", "sets"))
    cli("data", "verify", "sets", "--plugin", "sets.py")
    cli("test", "--test", "angles", "--plugin", new("test", "angles"))
    for kind in ("corruption", "scorer", "distribution"):
        rows = cli.json("list", f"{kind}s", "--check", "--plugin", new(kind, f"my_{kind}"))
        assert f"my_{kind}" in {row["name"] for row in rows}


def test_the_template_of_a_distribution_samples_what_it_says(tmp_path):
    path = tmp_path / "mist.py"
    write_template("distribution", "mist", path)
    cloud = import_file(path).Mist(torch.zeros(2, 3), torch.tensor([0.5, 2.0]))
    torch.manual_seed(0)
    lengths = cloud.rsample(torch.Size([4000])).norm(dim=-1).mean(0)
    torch.testing.assert_close(lengths, 3 * cloud.scale, rtol=0.05, atol=0.0)  # Gamma(D, scale)
    assert cloud.log_prob(torch.ones(2, 3)).shape == (2,)


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
