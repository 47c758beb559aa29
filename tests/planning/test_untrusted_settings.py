"""Files of settings and values of options that no setting can have: one line each."""

import sys

import pytest
from bench.errors import UserError
from bench.planning.experiment import LARGEST, read_settings_file
from bench.planning.setting import convert


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
    with pytest.raises(UserError) as caught:
        read_settings_file(str(tmp_path / name), ["cosface"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(("text", "default"), [("9" * 400, 20), ("1000001", 20), ("9" * 400, ()), ("1e999", 0.1)])
def test_huge_numbers_are_out_of_range(text, default):
    with pytest.raises(UserError, match="out of range") as caught:
        convert(text, default, "--set optim.x")
    assert len(str(caught.value)) < 100
