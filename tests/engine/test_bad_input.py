"""Bad input: one line on standard error that says what to do, exit code 2; failures: a reason, exit code 1."""

import json

import pytest

from tests.templates import PLAIN, template, written

TINY = ("--dataset", "ndigit_smoke", "--set", "optim.epochs=1", "--seeds", "1", "--trials", "3", "--workers", "1")

DIVERGES = (
    ("scale * cosines, labels)", "scale * cosines, labels) * (float('nan') if scale > 20 else 1)"),
    ("tuned(16.0, 4.0, 64.0, log=True", "tuned(12.0, 4.0, 64.0"),
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--method", "pfe", "--dataset", "ndigits"), "unknown data set 'ndigits'; did you mean 'ndigit'"),
        (("run", "--method", "pfe", "--protocol", "realty_check"), "did you mean 'reality_check'"),
        (("run", "--method", "pfe", "--preset", "stric"), "did you mean 'strict'"),
        (("run", "--method", "pfe", "--base", "cosfase"), "did you mean 'cosface'"),
        (("run", "--method", "pfe", "--base", "pfe"), "needs a base itself"),
        (("run", "--method", "pfe", "--sampler", "gpp"), "'gpp'"),
        (("run", "--method", "pfe", "--folds", "5"), "cuts the development classes into 4"),
        (("run", "--method", "pfe", "--seeds", "0"), "--seeds"),
        (("run", "--method", "pfe", "--trails", "9"), "--trials"),
        (("run", "--method", "cosface", "--set", "augment.crop_low=2"), "crop"),
        (("run", "--method", "cosface", "--set", "optim.lr=1", "--set", "optim.lr=2"), "given 2 times"),
        (("run", "--method", "cosface", "--hparams", "published"), "no published setting of 'cosface' on 'ndigit'"),
        (("run", "--method", "cosface", "--hparams", "nowhere.json"), "nowhere.json"),
        (("run", "--method", "cosface", "--plugin", "nowhere.py"), "no such file"),
        (("show", "dulcls"), "did you mean 'dul_cls'"),
        (("rum",), "run"),
        (("train",), "did you mean 'run'?"),
        (("run", "cosface", "ndigit"), "one list, such as --method cosface,dul_cls"),
        (("run", "--method", "cosface", "dul_cls"), "--method M,N --dataset D"),
        (("run", "--method", "dulcls"), "did you mean 'dul_cls'? one of a plug-in needs --plugin FILE"),
        (("run", "--method", ""), "no name was given"),
        (("run", "--method", "cosface", "--set", "optim.lr=inf"), "out of range"),
        (("run", "--method", "cosface", "--results", "/proc/nowhere"), "/proc/nowhere"),
        (("status",), "contains no results"),
        (("report", "--results", "nowhere"), "contains no results"),
    ],
)
def test_one_line_that_says_what_to_do(arguments, message, inside, monkeypatch):
    monkeypatch.setattr("bench.engine.pool.Pool.start", lambda *_: pytest.fail("accepted: work would have started"))
    assert message in inside.refused(*arguments)


def test_a_results_folder_of_another_version_is_refused(inside, tmp_path):
    root = tmp_path / "results" / "runs"
    root.mkdir(parents=True)
    for held, message in (
        ({"schema": 99, "protocols": {"reality_check": 1}}, "schema 99"),
        ({"schema": 3, "protocols": {"reality_check": 99}}, "version 99"),
        ("nonsense", "contains no results"),
    ):
        (root / "store.json").write_text(json.dumps(held))
        # A damaged marker without any record is set aside by a run, which begins anew.
        run = () if held == "nonsense" else (("run", "--method", "cosface", *TINY),)
        for arguments in (*run, ("status",), ("report",)):
            assert message in inside.refused(*arguments)
    assert [p.name for p in root.iterdir()] == ["store.json"]


@pytest.mark.slow
def test_a_loss_that_becomes_nan_fails_its_trial_and_the_study_goes_on(cli, tmp_path):
    plugin = written(tmp_path, template(tmp_path, "method", "diverges", *DIVERGES))
    done = cli("run", "--method", "diverges", *TINY, "--plugin", plugin)
    trials = [json.loads(p.read_text()) for p in tmp_path.rglob("trial-*.json")]
    failed = [t for t in trials if t["state"] == "failed"]
    assert 0 < len(failed) < 3
    assert all("loss became nan in epoch 1" in t["reason"] for t in failed)
    assert all(t["params"]["method.scale"] > 20 for t in failed)
    assert "failed: loss became nan" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_bug_is_reported_and_not_remembered_as_a_bad_setting(cli, tmp_path):
    plugin = written(tmp_path, PLAIN.replace("return CosineClassifier", "undefined_name; return CosineClassifier"))
    done = cli("run", "--method", "mine", *TINY, "--plugin", plugin, check=False)
    assert done.returncode == 1
    assert "NameError" in done.stderr
    assert not list(tmp_path.rglob("trial-*.json"))
    # Fault A12: the last line named metrics.csv although none was written.
    assert "no test finished, so there is no table" in " ".join(done.stderr.split())
    assert "metrics.csv" not in done.stderr


def test_a_file_that_does_not_import_is_listed_with_its_reason(inside, tmp_path):
    plugin = written(tmp_path, "import not_installed_anywhere\n" + PLAIN)
    rows = inside("list", "methods", "--plugin", plugin, "--check", "--json", check=False)
    assert rows.returncode == 1
    row = next(r for r in json.loads(rows.stdout) if r["name"] == "mine")
    assert "not_installed_anywhere" in row["error"]
    listed = inside("list", "methods", "--plugin", plugin, "--check", check=False).stdout
    assert {"FAIL  mine", "ok    cosface"} <= {line[:13].rstrip() for line in listed.splitlines()}
    assert "not_installed_anywhere" in inside.refused("show", "mine", "--plugin", plugin)
    plugin.write_text("def broken(:\n")
    assert "SyntaxError" in inside.refused("run", "--method", "cosface", "--plugin", plugin)
    plugin.write_text(PLAIN.replace('"mine"', '"cosface"'))
    assert "defined twice" in inside("list", "methods", "--plugin", plugin, check=False).stderr


@pytest.mark.parametrize("command", ["score", "run --method cosface --plugin", "data import cub200"])
def test_a_path_that_is_not_there_is_answered_with_the_nearest(command, inside, tmp_path):
    (tmp_path / "photos").mkdir()
    assert "; did you mean 'photos'?" in inside.refused(*command.split(), "photo")
