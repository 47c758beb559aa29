"""Recognition of a results folder whose marker or whose records are gone."""

import pytest
from bench.errors import UserError
from bench.store.folder import Store

UNIT = "reality_check/ndigit_smoke/cosface/train-0123456789abcdef"


def _folder(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return Store(root)


@pytest.mark.parametrize(
    "files",
    [
        (),
        ("store.json",),
        (f"{UNIT}/checkpoint.pt",),
        (f"{UNIT}/record.json", "store.json", "report/comparison.csv", "metrics.csv", ".drivers/one"),
        ("reality_check/ndigit_smoke/cosface/study-0123456789abcdef/study.json",),
    ],
)
def test_a_run_that_lost_its_marker_before_its_first_record_begins_anew(files, tmp_path):
    """Every repeat ended with "is not empty and not a results folder", or with "store.json is damaged"."""
    store = _folder(tmp_path, *files)
    store.open("reality_check", 1, create=True)
    store.mark("reality_check", 1)
    store.open("reality_check", 1, create=False)
    assert all((tmp_path / name).exists() for name in files)


@pytest.mark.parametrize(
    "files",
    [
        ("notes.txt",),
        ("metrics.csv",),  # of another program, which ours would replace
        ("report/index.html", "metrics.csv"),
        ("store.json", "src/main.py"),
        ("a/b/c/notes.txt",),
        ("a/b/c/train-new/record.json",),
        ("a/b/notes.txt", f"{UNIT}/checkpoint.pt"),
    ],
)
def test_a_folder_of_something_else_is_left_alone(files, tmp_path):
    with pytest.raises(UserError, match=r"name another|move the folder"):
        _folder(tmp_path, *files).open("reality_check", 1, create=True)
