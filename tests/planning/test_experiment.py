"""Experiments: what is typed, written to a file, read from it, and kept with the results."""

import json
import tomllib
from pathlib import Path

import pytest
from bench.cli import main
from bench.planning.experiment import Experiment, read_experiment

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
        ("a" + ".a" * 20_000 + " = 1", "more than 100 dots"),
        ("#" + 70_000 * "a", "more than 64000 bytes"),
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
