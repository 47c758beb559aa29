"""Experiments: typed, written, read and kept; and settings that no file or option can have."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from bench.cli import main
from bench.errors import UserError
from bench.planning.experiment import LARGEST, Experiment, read_experiment, read_settings_file
from bench.planning.setting import convert

from tests.refusals import one_line

SCHEMA = Path(__file__).parents[2] / "docs" / "experiment.schema.json"

TYPED = {
    "methods": ["pfe,cosface"],
    "datasets": ["ndigit_smoke"],
    "seeds": 2,
    "hparams": "default",
    "plugins": ['odd "name".py'],
    "set": ["optim.lr=0.30", "optim.epochs=2", "data.calibrate=false", "tuning.sampler=tpe", "run.stall=5"],
    "sweep": ["method.margin=0.1,0.2"],
}


def test_a_file_has_all_that_was_typed():
    experiment = Experiment.filled({}, TYPED)
    table = tomllib.loads(experiment.to_toml())
    assert Experiment.filled(table, {}) == experiment
    assert table["set"] == {"optim.lr": "0.30", "optim.epochs": 2, "data.calibrate": False}
    assert (table["sweep"], table["tuning"]) == ({"method.margin": [0.1, 0.2]}, {"sampler": "tpe"})
    assert experiment.run.stall == 5
    assert "run" not in tomllib.loads(experiment.to_toml(without=("run",)))


def test_typed_options_override_the_file_key_by_key():
    file = tomllib.loads(Experiment.filled({}, TYPED).to_toml())
    typed = {
        "methods": ["hib"],
        "set": ["optim.lr=1", "tuning.folds=2", "method.margin=0.5"],
        "sweep": ["optim.epochs=1,2"],
    }
    experiment = Experiment.filled(file, typed)
    assert (experiment.methods, experiment.seeds) == (("hib",), 2)
    assert experiment.set == {"optim.lr": "1", "data.calibrate": "false", "method.margin": "0.5"}
    assert experiment.sweep == {"optim.epochs": ("1", "2")}
    assert (experiment.tuning.sampler, experiment.tuning.folds) == ("tpe", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "cosface"', "did you mean 'methods'"),
        ('methods = "cosface"\n[tunning]', "did you mean 'tuning'"),
        ('methods = "cosface"\n[tuning]\nsamplr = "tpe"', "did you mean 'tuning.sampler'"),
        ('methods = "cosface"\n[set]\n"tuning.fold" = 2', "did you mean 'tuning.folds'"),
        ('methods = "cosface"\n[set]\n"optim.lrr" = 2', "did you mean 'optim.lr'"),
        ('methods = "cosface"\nset = 3', "set=3: input should be a valid dictionary"),
        ('methods = "cosface"\nset = ["optim.lr"]', "expected KEY=VALUE"),
        ('methods = "cosface"\n[set]\na = 2020-01-01', "input should be a valid string"),
        ('methods = "cosface"\ntuning = 3', "tuning=3"),
        ('methods = "cosface"\ntuning = 3\n[set]\n"tuning.folds" = 2', "tuning=3"),
        ('methods = "cosface"\ntuning = [3]\n[set]\n"tuning.folds" = 2', "input should be"),
        ('methods = "cosface"\nseeds = 0', "seeds=0: input should be greater than or equal to 1"),
        ('methods = "cosface"\nsweep = 1', "sweep=1"),
        ("seeds = 2", "no method is named"),
        ("methods = 1", "methods=1"),
        ("methods = ", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused_in_one_line(tmp_path, monkeypatch, refusal, text, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(text)
    said = refusal("run", "mine.toml", "--dataset", "ndigit_smoke", "--dry-run")
    assert message in said
    assert len(said) < 700


@pytest.mark.parametrize("arguments", [("run",), ("run", "--dataset", "ndigit_smoke"), ("run", "cosface")])
def test_a_run_of_nothing_says_what_to_type(arguments, refusal):
    assert "--method" in refusal(*arguments)


def test_the_command_line_saves_loads_and_keeps_an_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.commands.dry_run.print_estimate", lambda *arguments: None)
    typed = ["--method", "cosface", "--dataset", "ndigit_smoke", "--set", "optim.epochs=1", "--folds", "2"]
    assert main(["run", *typed, "--workers", "1", "--save", "mine.toml", "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert main(["run", "mine.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == plan
    saved = read_experiment(Path("mine.toml"))
    assert saved == {
        "methods": ["cosface"], "datasets": ["ndigit_smoke"], "set": {"optim.epochs": 1}, "tuning": {"folds": 2},
        "run": {"workers": 1},
    }  # fmt: skip
    assert not Path("results").exists()


@pytest.mark.slow
def test_a_results_folder_keeps_the_experiments_that_made_it(tmp_path):
    from ..in_process import run_here

    smoke = ("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1")
    for options in (
        ("--set", "optim.epochs=1"),
        ("--set", "optim.epochs=1", "--workers", "1"),
        ("--set", "optim.epochs=2"),
    ):
        results = run_here(tmp_path, *smoke, *options, figures=False)
    kept = [read_experiment(path) for path in (results / "experiments").iterdir()]
    assert sorted(each["set"]["optim.epochs"] for each in kept) == [1, 2]
    (results / "store.json").unlink()
    run_here(tmp_path, *smoke, "--set", "optim.epochs=1", figures=False)


def test_the_schema_in_the_docs_is_current():
    schema = json.dumps(Experiment.model_json_schema(), indent=1) + "\n"
    assert SCHEMA.read_text() == schema, (
        'type: uv run python -c "import json; from bench.planning.experiment import Experiment;'
        ' print(json.dumps(Experiment.model_json_schema(), indent=1))" > docs/experiment.schema.json'
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"optim.lr": 1, "optim.lr": 2}', "the key 'optim.lr' is there more than once"),
        ("a.json", '{"cosface": {"method.scale": 1, "method.scale": 2}}', "is there more than once"),
        ("a.toml", '"optim.lr" = 1\n"optim.lr" = 2\n', "not valid TOML"),
        ("a.json", "[" * 30_000, "nested too deeply" if sys.version_info < (3, 14) else "not valid JSON"),
        ("a.toml", "a = " + "[" * 30_000, "nested too deeply"),
        ("a.toml", "a" + ".a" * 20_000 + " = 1", "more than 100 dots"),
        ("a.json", '{"optim.lr": NaN}', "NaN is not a JSON number"),
        ("a.json", '{"optim.lr": 1e999}', "must be text, a finite number"),
        ("a.json", '{"optim.lr": [[1]]}', "must be text, a finite number"),
        ("a.json", '{"cosface": {"method.scale": {}}}', "must be text, a finite number"),
        ("a.toml", '"optim.lr" = 2020-01-01', "must be text, a finite number"),
        ("a.json", '{"optim.optimizer": "\\ud800"}', "cannot be printed"),
        ("a.json", '{"optim.optimizer": "\\ud800%s"}' % ("a" * 9000), r"cannot be printed: '\ud800aaa"),
        ("a.json", '{"%s": null}' % ("a" * 9000), "aaa…' must be text"),
        ("a.json", " " * (LARGEST + 1), "more than 64000 bytes"),
        ("a.json", '{"optim.epochs": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_file_of_settings_is_refused_in_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    said = one_line(UserError, read_settings_file, str(tmp_path / name), ["cosface"])
    assert message in said
    assert len(said) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(("text", "default"), [("9" * 400, 20), ("1000001", 20), ("9" * 400, ()), ("1e999", 0.1)])
def test_huge_numbers_are_out_of_range(text, default):
    with pytest.raises(UserError, match="out of range") as caught:
        convert(text, default, "--set optim.x")
    assert len(str(caught.value)) < 100
