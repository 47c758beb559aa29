"""Omniglot: split by alphabets as published, in whatever it comes, with turned characters in training alone."""

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from bench.cli import main
from bench.conformance import DATASET_CHECKS
from bench.conformance.failure import ConformanceError
from bench.datasets import downloads
from bench.datasets.files import DataError
from bench.datasets.omniglot import Omniglot, OmniglotRotated, TurnedImages
from bench.datasets.view import PhotoAugmentation, View
from bench.engine.training import run_training
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.resources import data_home
from bench.site import Site
from PIL import Image

from .mirror import Mirror, serving, zipped

DRAWERS = 3
BACKGROUND = {"Greek": 2, "Arcadian": 2, "Korean": 3, "Latin": 1}
EVALUATION = {"Tengwar": 2, "ULOG": 3}
CLASSES = sum(BACKGROUND.values()), sum(EVALUATION.values())
IMAGES = DRAWERS * sum(CLASSES)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Counts of the tiny copy in place of the official ones, and a cache of its own."""
    monkeypatch.setattr(Omniglot, "counts", (IMAGES, sum(CLASSES)))
    monkeypatch.setattr(Omniglot, "part_classes", CLASSES)


@pytest.fixture
def release(tmp_path):
    """The official layout: strokes in black on white, one bit, 105 x 105."""
    number = 0
    for part, alphabets in (("images_background", BACKGROUND), ("images_evaluation", EVALUATION)):
        for alphabet, characters in alphabets.items():
            for character in range(1, characters + 1):
                number += 1
                folder = tmp_path / "release" / part / alphabet / f"character{character:02d}"
                folder.mkdir(parents=True)
                for drawer in range(1, DRAWERS + 1):
                    image = Image.new("1", (105, 105), 1)
                    image.paste(0, (20, 20, 40, 60 + 5 * drawer))  # a stroke of its own, and a shared one
                    image.paste(0, (5 * number, 45, 5 * number + 10, 55))
                    image.save(folder / f"{number:04d}_{drawer:02d}.png")
    return tmp_path / "release"


@pytest.fixture
def archives(release, tmp_path):
    """Folder of the two archives."""
    folder = tmp_path / "archives"
    folder.mkdir()
    for part in release.iterdir():
        (folder / f"{part.name}.zip").write_bytes(zipped(part, release))
    return folder


def test_classes_are_characters_split_by_alphabet(release):
    data = Omniglot(release)
    split, test = data.train_val(), data.test()
    assert split.val.class_names == ("Arcadian/character01", "Arcadian/character02")
    assert {name.split("/")[0] for name in split.train.class_names} == {"Greek", "Korean", "Latin"}
    assert {name.split("/")[0] for name in test.class_names} == {*EVALUATION}
    assert (split.train.num_classes + split.val.num_classes, test.num_classes) == CLASSES
    assert set(torch.bincount(test.labels).tolist()) == {DRAWERS}
    assert "images_evaluation/Tengwar/character01/0009_01.png" in test.ids


@pytest.mark.parametrize("name", [Omniglot, OmniglotRotated])
@pytest.mark.parametrize("check", DATASET_CHECKS)
def test_it_conforms(name, check, release):
    DATASET_CHECKS[check](name(release, view=View(image_size=32, resize=32)))


def test_a_turned_character_that_trains_while_it_validates_is_refused(release, monkeypatch):
    def leaking(self, fold, folds):
        _, val = Omniglot._train_and_val(self, fold, folds)
        turned = TurnedImages.of(self._trainable[1])
        trains = [turned.class_names[label] not in val.class_names for label in turned.labels.tolist()]
        return turned.select(torch.tensor(trains).nonzero()[:, 0]), val

    monkeypatch.setattr(OmniglotRotated, "_train_and_val", leaking)
    with pytest.raises(ConformanceError, match=r"fold 0: .*\.png trains and validates"):
        DATASET_CHECKS["classes"](OmniglotRotated(release, view=View(image_size=32, resize=32)))


def test_an_alphabet_in_the_other_half_is_refused(release):
    (release / "images_evaluation" / "ULOG").rename(release / "images_background" / "ULOG")
    with pytest.raises(DataError, match=r"Omniglot has \(8, 5\) development and test classes, not \(11, 2\)"):
        Omniglot(release).test()


@pytest.mark.parametrize("form", ["archives", "folder of archives", "content"])
def test_every_form_is_imported(form, archives, release, tmp_path, capsys):
    sources = {"archives": sorted(archives.iterdir()), "folder of archives": [archives], "content": [release]}[form]
    root = tmp_path / "data"
    assert main(["data", "import", "omniglot", *map(str, sources), "--data-root", str(root)]) == 0
    assert f"{IMAGES} images, {sum(CLASSES)} classes" in capsys.readouterr().out
    for name in ("omniglot", "omniglot_rotated"):  # both read the same files
        assert main(["data", "verify", name, "--data-root", str(root)]) == 0
        assert f"test      {DRAWERS * CLASSES[1]} images     {CLASSES[1]} classes" in capsys.readouterr().out


def test_what_lies_beside_or_among_the_characters_is_no_part_of_the_release(release):
    whole = Omniglot(release).listing.ids
    for part, beside in (("images_background", "__MACOSX"), ("images_evaluation", "a backup")):
        shutil.copytree(release / part, release.parent / "all" / beside / part)
    for name in ("@eaDir", ".ipynb_checkpoints"):
        shutil.copytree(release / "images_background/Greek/character01", release / "images_background/Greek" / name)
    shutil.move(release, release.parent / "all" / "omniglot")
    assert Omniglot(release.parent / "all").listing.ids == whole
    for path in sorted((release.parent / "all" / "omniglot").rglob("*.png")):
        path.rename(path.with_suffix(".PNG"))
    data = OmniglotRotated(release.parent / "all")
    assert [name.replace(".PNG", ".png") for name in data.listing.ids] == whole
    assert data.train_val().train.pixels_of(torch.arange(3)).shape[0] == 3
    shutil.rmtree(release.parent / "all" / "omniglot")
    with pytest.raises(DataError, match="a backup has images_evaluation alone"):
        Omniglot(release.parent / "all")


def test_folders_in_folders_of_their_name_are_named(release):
    for part in ("images_background", "images_evaluation"):
        shutil.move(release / part, release.parent / "x")
        shutil.move(release.parent / "x", release / part / part)
    with pytest.raises(DataError, match=r"no image at images_\w+/ALPHABET/.*png; move"):
        Omniglot(release)


def test_what_is_not_whole_is_refused_in_one_line(archives, release, tmp_path, refusal):
    root = tmp_path / "data"

    def refused(*sources):
        line = refusal("data", "import", "omniglot", *sources, "--data-root", root)
        assert [*root.iterdir()] == []
        return line

    said = refused(archives / "images_background.zip")
    assert "has images_background alone, Omniglot is images_background and images_evaluation" in said
    whole = sum(CLASSES)
    (release / "images_background/Greek/character02/0002_03.png").unlink()
    (archives / "images_background.zip").write_bytes(zipped(release / "images_background", release))
    assert f"incomplete: {IMAGES - 1} of {IMAGES} images, {whole} of {whole} classes" in refused(archives)
    shutil.rmtree(release / "images_background/Greek")
    (archives / "images_background.zip").write_bytes(zipped(release / "images_background", release))
    said = f"incomplete: {IMAGES - 2 * DRAWERS} of {IMAGES} images, {whole - 2} of {whole} classes"
    assert said in refused(*archives.iterdir())


@pytest.fixture
def mirror(archives, monkeypatch):
    """Server of the two archives, which are the owners' by their checksums."""
    monkeypatch.setattr(downloads, "PAUSES", (0.0, 0.0))
    monkeypatch.delenv("http_proxy", raising=False)
    with serving(Mirror(files={f"/{path.name}": path.read_bytes() for path in archives.iterdir()})) as server:

        def served(archive):
            content, url = server.files[f"/{archive.file}"], f"{server.url}/{archive.file}"
            said = {"size": len(content), "checksum": f"md5:{hashlib.md5(content).hexdigest()}"}
            return dataclasses.replace(archive, url=url, further=tuple(map(served, archive.further)), **said)

        monkeypatch.setattr(Omniglot, "archive", served(Omniglot.archive))
        yield server


def test_both_archives_are_downloaded_and_checked(mirror, tmp_path, capsys, refusal):
    arguments = ["data", "download", "omniglot", "--data-root", str(tmp_path / "data")]
    right = mirror.files["/images_evaluation.zip"]
    mirror.files["/images_evaluation.zip"] = right[:-1] + b"x"
    assert "another file, or damaged on the way" in refusal(*arguments)
    mirror.files["/images_evaluation.zip"] = right
    mirror.asked.clear()
    assert main(arguments) == 0
    assert [path for path, _ in mirror.asked] == ["/images_evaluation.zip"]  # the first was right and stays
    said = capsys.readouterr().out
    assert "licence MIT" in said
    assert f"archive {mirror.url}/images_background.zip" in said
    assert "not the owners'" not in said
    assert f"{IMAGES} images, {sum(CLASSES)} classes" in said
    assert not [*(tmp_path / "data" / ".downloads").glob("*.zip")]


def test_a_mirror_is_a_folder_and_its_copies_are_counted(mirror, release, tmp_path, capsys, refusal):
    mirror.files["/images_background.zip"] += b"\0"  # packed anew
    mirror.files = {f"/copies{path}": content for path, content in mirror.files.items()}
    arguments = ["data", "download", "omniglot", "--data-root", tmp_path / "data", "--mirror"]
    assert "give the address of the folder that contains images_background.zip and images_evaluation.zip" in refusal(
        *arguments, f"{mirror.url}/copies/images_background.zip"
    )
    said = refusal(*arguments, mirror.url, "--checksum", f"md5:{'0' * 32}")
    assert "--checksum is of one archive, Omniglot has 2; leave it out" in said
    assert main([*map(str, arguments), f"{mirror.url}/copies"]) == 0
    said = capsys.readouterr().out
    assert said.count("not the owners' archive (md5:") == 1
    assert f"{IMAGES} images, {sum(CLASSES)} classes" in said


def test_rotation_makes_classes_of_training_alone(release):
    view = View(image_size=24, resize=24)
    plain, rotated = Omniglot(release, view=view), OmniglotRotated(release, view=view)
    train, turned = plain.train_val().train, rotated.train_val().train
    count = len(train)
    names = {f"{name}{turn}" for name in train.class_names for turn in ("", "@90", "@180", "@270")}
    assert set(turned.class_names) == names
    assert (len(turned), turned.num_classes) == (4 * count, 4 * train.num_classes)
    for part in (lambda data: data.train_val().val, lambda data: data.test()):
        assert part(rotated).manifest_sha256() == part(plain).manifest_sha256()

    first = train.pixels_of(torch.tensor([5]))[0]
    assert all(not torch.equal(first, first.rot90(quarter, (1, 2))) for quarter in (1, 2, 3))
    index = torch.tensor([5, count + 5, 2 * count + 5, 3 * count + 5])
    whole = PhotoAugmentation(area_low=1, ratio_low=1, ratio_high=1, flip=0, brightness=0, contrast=0, saturation=0)
    chosen = turned.select(index)  # keeps how each is turned
    rows = torch.arange(4)
    for found in (
        turned.evaluation(index),
        chosen.evaluation(rows),
        chosen.training(rows, whole, torch.Generator().manual_seed(0)),
        chosen.cropped(rows, torch.full((4,), 85 / 105)),
    ):
        for quarter, image in enumerate(found):
            assert torch.allclose(image, found[0].rot90(quarter, (1, 2)), atol=1 / 255)  # resized before or after
            assert quarter == 0 or not torch.allclose(image, found[0], atol=0.1)


@pytest.mark.parametrize(("name", "classes"), [("omniglot", 6), ("omniglot_rotated", 24)])
def test_it_is_trained_on_by_its_recipe(name, classes, release, tmp_path):
    site = Site(results=str(tmp_path / "results"), data_root=str(release))
    asked = Experiment(methods=("cosface",), datasets=(name,), hparams="default", set=["optim.epochs=1"])
    spec = build_plans(asked, site).plans[-1].train_specs({}, 0, None)[0]
    assert (spec.backbone, spec.augmentation["flip"]) == ("convnet", 0)  # a mirrored character is another one
    record = run_training(spec, site, lambda epoch: None)
    assert record.num_classes == classes
    assert record.val_map_at_r > 0


@pytest.mark.skipif(not (data_home() / "omniglot").is_dir(), reason="Omniglot is not on this machine")
def test_the_whole_release_is_as_published(monkeypatch):
    monkeypatch.undo()
    data = Omniglot(data_home())
    split, test = data.train_val(), data.test()
    alphabets = [{name.split("/")[0] for name in part.class_names} for part in (split.train, split.val, test)]
    assert [len(names) for names in alphabets] == [22, 9, 20]
    assert alphabets[0] & alphabets[1] == {"Braille"}
    assert not alphabets[2] & (alphabets[0] | alphabets[1])
    assert (split.train.num_classes, split.val.num_classes, test.num_classes) == (723, 241, 659)
    assert Path(data.listing.folder).is_dir()
