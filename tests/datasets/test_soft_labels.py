"""Label distributions of people, in a file next to a folder of images."""

import numpy as np
import pytest
import torch
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.folder import Folder
from bench.datasets.soft_labels import FILE

HEADER = "path,class 0,class 5,class 6\n"


def _write(root, text):
    (root / FILE).write_text(text, encoding="utf-8")
    return root


def test_rows_find_their_images_and_others_have_none(releases):
    rows = "class 5/1.png,0.25,0.5,0.25\n./class 4/0.png,1,0,0\nclass 0/2.png,0.9999,0,0.0004\n"
    dataset = Folder(_write(releases.folder(), "\ufeff" + HEADER + rows))
    images = dataset.test()
    expected = np.full((12, 3), np.nan)
    expected[images.ids.index("class 5/1.png")] = (0.25, 0.5, 0.25)
    expected[images.ids.index("class 4/0.png")] = (1, 0, 0)
    np.testing.assert_array_equal(images.soft_labels.numpy(), expected)
    assert images.soft_labels.dtype == torch.float64
    assert len(dataset.soft_labels_sha256) == 64


def test_paths_name_the_part_that_an_image_plays(releases):
    root = _write(releases.folder(roles=True), "path,class 5\nquery/class 5/1.png,1\ntrain/class 0/0.png,1\n")
    images = Folder(root).test()
    assert [images.ids[i] for i in (~images.soft_labels.isnan().all(1)).nonzero().squeeze(1)] == ["query/class 5/1.png"]


def test_without_the_file_there_are_none(releases):
    dataset = Folder(releases.folder())
    assert dataset.test().soft_labels is None
    assert dataset.soft_labels_sha256 == ""
    assert "soft_labels" not in dataset.verify()


def test_verify_says_what_was_found(releases, capsys):
    root = _write(releases.folder(), HEADER + "class 0/1.png,1,0,0\nclass 5/1.png,0,1,0\n")
    assert main(["data", "verify", "folder", "--data-root", str(root)]) == 0
    assert "label distributions (probabilities.csv): 2 of 24 images, 1 of 12 test images, 3 classes" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV table"),
        ("path,class 0\na,b,c,d\n", "not a CSV table"),
        ("image,class 0\nclass 0/1.png,1\n", "expected a column 'path'"),
        ("path\nclass 0/1.png\n", "expected a column 'path'"),
        (HEADER, "a line per image"),
        ("path,clas 0\nclass 0/1.png,1\n", "column 'clas 0' is not a class of this data set; did you mean 'class 0'"),
        ("path,class 0,class 0\nclass 0/1.png,1,0\n", "column 'class 0' appears twice"),
        (HEADER + "class 0/1.png,1,0,0\nclass 0/1.png,1,0,0\n", "'class 0/1.png' appears twice"),
        (HEADER + "class 0/9.png,1,0,0\nclass 0/1.png,1,0,0\n", "name an unknown image, such as 'class 0/9.png'"),
        (HEADER + "class 0/1.png,1.5,-0.5,0\n", "the row of 'class 0/1.png' has a negative probability"),
        (HEADER + "class 0/0.png,1,0,0\nclass 0/1.png,0.5,0.498,0\n", "'class 0/1.png' does not sum to 1 but to 0.998"),
        (HEADER + "class 0/1.png,1,,0\n", "has a value that is not a number"),
        (HEADER + "class 0/1.png,1\n", "the row of 'class 0/1.png' has a value that is not a number"),
        (HEADER + "class 0/1.png,inf,0,0\n", "has a value that is not a number"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_reason(releases, text, message):
    root = _write(releases.folder(), text)
    with pytest.raises(DataError) as caught:
        Folder(root)
    assert message in str(caught.value)
    assert FILE in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused(releases, monkeypatch, refusal):
    root = releases.folder()
    (root / FILE).write_bytes(b"path,\xff\xfe\n")
    monkeypatch.chdir(root)
    assert "not a CSV table" in refusal(
        "run", "--method", "cosface", "--dataset", "folder", "--data-root", root, "--dry-run"
    )
