"""Downloads: resumed after an interruption, checked, and nothing left that a later run mistakes for whole."""

import errno
import hashlib
import io
import json
import os
import shlex
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from bench.cli import main
from bench.datasets import downloads
from bench.datasets.cub200 import CUB200
from bench.datasets.downloads import Archive, download
from bench.datasets.files import DataError
from bench.datasets.grocery import Grocery
from bench.datasets.sop import SOP
from bench.datasets.view import View

from tests.refusals import one_line

from .conftest import photo
from .mirror import Mirror, serving, zipped

CONTENT = bytes(range(256)) * 2000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSES", (0.0, 0.0))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(Mirror(CONTENT)) as server:
        yield server


@pytest.fixture
def target(tmp_path):
    return tmp_path / "d" / "birds.zip"


def _refused(mirror, target, **options):
    said = one_line(DataError, download, f"{mirror.url}/birds.zip", target, **options)
    assert not target.exists()
    return said


def _part(mirror, target, note=None):
    """Leave a part of 1000 wrong bytes, with a note of what it is of."""
    target.parent.mkdir()
    target.with_name("birds.zip.part").write_bytes(b"x" * 1000)
    of = json.dumps({"url": f"{mirror.url}/birds.zip", "version": '"one"'})
    target.with_name("birds.zip.part.json").write_text(of if note is None else note)


def _left(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_a_file_is_at_its_place_when_it_is_whole_and_checked(mirror, target):
    seen = []
    download(f"{mirror.url}/birds.zip", target, size=len(CONTENT), checksum=MD5, progress=lambda *n: seen.append(n))
    assert target.read_bytes() == CONTENT
    assert _left(target) == ["birds.zip"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    download(f"{mirror.url}/birds.zip", target, checksum=MD5.upper())
    assert len(mirror.asked) == 1  # what is there is not asked for


def test_broken_connections_are_gone_on_with(mirror, target):
    mirror.cut, mirror.cuts = 200_000, 2
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in mirror.asked] == ["", "bytes=200000-", "bytes=400000-"]


def test_after_a_kill_the_next_command_goes_on(mirror, target):
    mirror.cut, mirror.cuts = 200_000, 1
    with pytest.raises(KeyboardInterrupt):
        download(f"{mirror.url}/birds.zip", target, checksum=MD5, progress=Mock(side_effect=KeyboardInterrupt))
    kept = target.with_name("birds.zip.part").stat().st_size
    assert not target.exists()
    assert 0 < kept <= 200_000
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert mirror.asked[-1][1] == f"bytes={kept}-"
    assert target.read_bytes() == CONTENT


def test_when_a_server_breaks_down_what_has_arrived_is_kept(mirror, target):
    mirror.cut, mirror.cuts = 200_000, 1
    said = _refused(mirror, target, progress=lambda done, total: setattr(mirror, "status", 503))
    kept = "0.2 MB are kept: the same command goes on where it stopped"
    assert said.endswith(f"the server answers 503 Service Unavailable; {kept}")
    mirror.status = 200
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert mirror.asked[-1][1] == "bytes=200000-"


@pytest.mark.parametrize("change", [{"tag": '"two"'}, {"ranges": False}, {"tag": ""}])
def test_a_changed_file_or_a_server_without_parts_begins_anew(mirror, target, change):
    _part(mirror, target)
    for name, value in change.items():
        setattr(mirror, name, value)
    download(f"{mirror.url}/birds.zip", target)
    assert mirror.asked[0][1] == "bytes=1000-"
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("note", ["", "[]", "{", '{"url": "http://other/birds.zip", "version": "\\"one\\""}'])
def test_a_part_of_unknown_origin_is_not_gone_on_with(mirror, target, note):
    _part(mirror, target, note)
    download(f"{mirror.url}/birds.zip", target)
    assert mirror.asked[0][1] == ""
    assert target.read_bytes() == CONTENT


def test_a_wrong_part_is_noticed_by_the_checksum_and_not_kept(mirror, target):
    _part(mirror, target)
    said = _refused(mirror, target, checksum=MD5)
    assert f"not {MD5}: another file, or damaged on the way; nothing is kept" in said
    assert _left(target) == []
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert target.read_bytes() == CONTENT


def test_more_than_the_whole_begins_anew(mirror, target):
    """An answer 416: the part is longer than the file."""
    _part(mirror, target)
    mirror.status = 416
    _refused(mirror, target)
    assert _left(target) == []


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><title>Quota</title>", b"\n <html>", b'{"error": "login"}'])
def test_a_web_page_is_no_archive(mirror, target, page):
    mirror.content = page
    assert "answers with a web page, not an archive" in _refused(mirror, target, checksum=MD5)
    assert _left(target) == []


def test_wrong_lengths_are_noticed(mirror, target):
    said = _refused(mirror, target, size=len(CONTENT) + 1)
    assert f"serves {len(CONTENT)} bytes, but the archive has {len(CONTENT) + 1}" in said
    mirror.length = False
    assert "serves 512000 bytes, but the archive has 1000" in _refused(mirror, target, size=1000)
    assert _left(target) == []
    mirror.length, mirror.claimed, mirror.ranges = True, len(CONTENT) + 1000, False
    assert "the connection ended after 0.512 MB of 0.513 MB" in _refused(mirror, target)


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (503, 3)])
def test_refusals_of_the_server_are_named(mirror, target, status, asked):
    mirror.status = status
    assert f"{mirror.url}/birds.zip: the server answers {status} " in _refused(mirror, target)
    assert len(mirror.asked) == asked


def test_a_dead_or_silent_server_is_given_up(mirror, target, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = Mirror(url=f"http://127.0.0.1:{free.getsockname()[1]}")
    assert "cannot be read (Connection refused); try later, or another --mirror URL" in _refused(dead, target)
    monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
    mirror.hang = 0.2
    assert "no answer in 0.05 s" in _refused(mirror, target)


def test_redirections_are_followed_and_loops_are_not(mirror, target):
    mirror.location = f"{mirror.url}/there.zip"
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert [path for path, _ in mirror.asked] == ["/birds.zip", "/there.zip"]
    target.unlink()
    mirror.location = f"{mirror.url}/loop.zip"
    assert "302 The HTTP server returned a redirect error" in _refused(mirror, target)
    mirror.location = "ftp://127.0.0.1/birds.zip"
    assert "ftp" in _refused(mirror, target)
    mirror.location = "file:///etc/passwd"
    assert "302 " in _refused(mirror, target)


def test_a_full_disk_is_named_and_what_there_is_is_kept(mirror, target, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > 50_000:
                if room := 50_000 - self.tell():
                    return super().write(data[:room])
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    whole = Path.open

    def opened(path, mode="r", *more, **options):
        return Full(path, mode) if mode == "ab" else whole(path, mode, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", opened)
        said = _refused(mirror, target)
    assert said.endswith("birds.zip.part: No space left on device; 0.05 MB are kept: make room, then the same command"
                         " goes on where it stopped")  # fmt: skip
    download(f"{mirror.url}/birds.zip", target, checksum=MD5)
    assert mirror.asked[-1][1] == "bytes=50000-"
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    target.unlink()
    assert "0.512 MB are to be downloaded, but only 0.001 MB are free" in _refused(mirror, target)


NO_ADDRESSES = ("ftp://a.org/x", "/tmp/x", "file:///tmp/x", "http://", "http://[", "http://a.org/ü")
NO_CHECKSUMS = ("abc", "md5:12", f"sha1:{'0' * 40}", f"md5:{'g' * 32}")


def test_options_are_checked_before_anything_is_asked(mirror, refusal, tmp_path):
    for arguments, said in (
        *((("--mirror", url), f"--mirror {url}: not an http:// or https:// address") for url in NO_ADDRESSES),
        *((("--mirror", mirror.url, "--checksum", x), f"checksum '{x}': write md5: and 32") for x in NO_CHECKSUMS),
        (("--checksum", MD5), "--checksum is of a copy on a --mirror"),
    ):
        assert said in refusal("data", "download", "sop", *arguments, "--data-root", tmp_path)
    assert mirror.asked == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def sop_zip(releases):
    root = releases.sop()
    return zipped(root, root)


def test_a_data_set_is_downloaded_imported_and_verified(mirror, sop_zip, tmp_path, monkeypatch, capsys):
    mirror.content = sop_zip
    sha256 = f"sha256:{hashlib.sha256(sop_zip).hexdigest()}"
    name = "Stanford_Online_Products.zip"
    monkeypatch.setattr(SOP, "archive", Archive(f"{mirror.url}/{name}", name, len(sop_zip), sha256))
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    assert main(["data", "download", "sop"]) == 0
    said = capsys.readouterr().out
    assert said.index("licence not known") < said.index("archive http://") < said.index("27 images, 9 classes")
    assert "test      12 images     4 classes" in said
    assert said.endswith("next: bench run --method dul_cls --dataset sop --seeds 5\n")
    assert sorted(path.name for path in (tmp_path / "data" / ".downloads").iterdir() if path.suffix != ".lock") == []
    assert "not the owners' archive" not in said
    assert main(["data", "download", "sop"]) == 0
    assert "is at" in capsys.readouterr().out
    assert len(mirror.asked) == 1
    assert main(["data", "verify", "sop"]) == 0


def test_a_copy_on_a_mirror_may_be_a_part_and_says_so(mirror, sop_zip, tmp_path, monkeypatch, capsys, refusal):
    monkeypatch.setattr(SOP, "counts", (120053, 22634))
    mirror.content = sop_zip
    root = tmp_path / "Jane's data"
    arguments = ["data", "download", "sop", "--mirror", mirror.url, "--data-root", str(root)]
    assert "nothing is kept" in refusal(*arguments, "--checksum", f"md5:{'0' * 32}")
    assert main(arguments) == 0
    assert mirror.asked[-1][0] == "/Stanford_Online_Products.zip"
    said = capsys.readouterr().out
    assert "not the owners' archive (md5:" in said
    assert "incomplete: 27 of 120053 images, 9 of 22634 classes" in said
    # What is to be typed next survives a shell.
    assert f"--dataset sop --data-root {shlex.quote(str(root))} --allow-partial --seeds 5" in said
    assert f"`bench data verify sop --data-root {shlex.quote(str(root))}` decodes them" in said
    assert "or use --allow-partial" in refusal("run", "--method", "dul_cls", "--dataset", "sop", "--data-root", root)


@pytest.mark.parametrize("content", [b"PK\3\4 damaged", CONTENT, b""])
def test_what_cannot_be_imported_is_not_kept(mirror, content, tmp_path, capsys):
    mirror.content = content
    assert main(["data", "download", "sop", "--mirror", mirror.url, "--data-root", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.suffix != ".lock"] == [".downloads"]


def test_an_archive_that_is_right_is_kept_if_it_cannot_be_unpacked(mirror, sop_zip, tmp_path, monkeypatch):
    mirror.content = sop_zip
    arguments = ["--mirror", mirror.url, "--checksum", f"sha256:{hashlib.sha256(sop_zip).hexdigest()}"]
    arguments += ["--data-root", str(tmp_path / "data")]
    with monkeypatch.context() as patch:
        patch.setattr("bench.datasets.archives.take", Mock(side_effect=DataError("no space")))
        assert main(["data", "download", "sop", *arguments]) == 2
    assert main(["data", "download", "sop", *arguments]) == 0
    assert len(mirror.asked) == 1


def test_two_downloads_of_one_file_do_not_mix(mirror, tmp_path, capsys):
    from filelock import FileLock

    folder = tmp_path / ".downloads"
    folder.mkdir()
    with FileLock(folder / "CUB_200_2011.tgz.lock"):
        assert main(["data", "download", "cub200", "--mirror", mirror.url, "--data-root", str(tmp_path)]) == 2
    assert "another command downloads cub200" in capsys.readouterr().err
    assert mirror.asked == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cars196", "fetch cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat"),
        ("inshop", "fetch Eval/list_eval_partition.txt and Img/img.zip"),
    ],
)
def test_what_owners_do_not_serve_is_explained(name, said, refusal, tmp_path):
    error = refusal("data", "download", name, "--data-root", tmp_path)
    assert said in error
    assert f"then `bench data import {name} DIR --data-root {tmp_path}`" in error


def test_missing_data_name_the_download(refusal, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "none"))
    assert f"`bench data download sop --data-root {tmp_path / 'none'}` gets it" in refusal(
        "run", "--method", "dul_cls", "--dataset", "sop"
    )
    assert f"{tmp_path / 'none' / 'folder'}: no such folder; put the images" in refusal("data", "verify", "folder")


def test_the_folder_of_data_is_the_environments_or_the_platforms(monkeypatch, tmp_path):
    from bench.resources import data_home

    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_home().name == "bench"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_DATA", "mine")
    assert data_home() == tmp_path / "mine"


def test_images_of_a_folder_are_found_where_an_import_puts_them(releases, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    assert main(["data", "import", "folder", str(releases.folder())]) == 0
    (tmp_path / "data" / "sop").mkdir()
    assert main(["data", "verify", "folder"]) == 0
    assert "24 images, 8 classes" in capsys.readouterr().out


def test_releases_that_are_downloaded_state_terms():
    for cls in (CUB200, SOP, Grocery):
        assert cls.licence
        assert cls.citation
        downloads.check_checksum(cls.archive.checksum or MD5)


def _grocery(root, names, images=2):
    base = root / "GroceryStoreDataset-fc80ba9" / "dataset"
    base.mkdir(parents=True)
    (base / "classes.csv").write_text("Class Name (str),Class ID (int)\n")
    for part in ("train", "val", "test"):
        paths = {f"{part}/Fruit/{name}/{name}_{i:03d}.jpg": n for n, name in enumerate(names) for i in range(images)}
        for path in paths:
            photo(base / path)
        (base / f"{part}.txt").write_text("".join(f"{path}, {number}, 0\n" for path, number in paths.items()))
    return base


def test_grocery_is_split_by_name_with_test_images_against_train_images(tmp_path, monkeypatch):
    names = ["Zucchini", "Apple", "Milk", "Banana", "Leek"]
    _grocery(tmp_path, names)
    monkeypatch.setattr(Grocery, "counts", (30, 5))
    data = Grocery(tmp_path)
    test, split = data.test(), data.train_val()
    assert [*split.train.class_names, *split.val.class_names] == ["Banana", "Apple"]
    assert list(test.class_names) == ["Leek", "Milk", "Zucchini"]
    assert len(split.train) + len(split.val) == 12
    assert {test.ids[i].split("/")[0] for i in test.queries} == {"test"}
    assert {test.ids[i].split("/")[0] for i in test.gallery} == {"train"}
    assert len(test) == 12
    drawn = next(split for seed in range(1, 99) if "Banana" in (split := data.split_anew(seed)).test().class_names)
    test, split = drawn.test(), drawn.train_val()
    assert {*test.class_names, *split.train.class_names, *split.val.class_names} == {*names}
    asked = {*test.queries.tolist()}
    assert all((name.split("/")[0] == "test") is (i in asked) for i, name in enumerate(test.ids))
    assert len(split.train) + len(split.val) == 2 * 6  # with those of val.txt


def test_lists_of_grocery_that_are_wrong_are_refused(tmp_path):
    base = _grocery(tmp_path, ["Apple", "Milk", "Leek", "Plum"])
    (base / "val.txt").write_text("train/Fruit/Apple/1.jpg, 0, 0\n")
    with pytest.raises(DataError, match=r"val.txt: the line `train/Fruit/Apple/1.jpg, 0, 0` is not `val/"):
        Grocery(tmp_path)
    (base / "val.txt").unlink()
    with pytest.raises(DataError, match=r"does not have all of classes\.csv"):
        Grocery(tmp_path)


def test_an_archive_of_a_commit_is_read_as_github_packs_it(tmp_path, mirror, capsys):
    base = _grocery(tmp_path / "tree", ["Apple", "Milk", "Leek", "Plum"], images=1)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "fc80"}) as file:
        file.add(base.parent, base.parent.name)
    mirror.content, mirror.length, mirror.tag = packed.getvalue(), False, ""
    arguments = ["--mirror", f"{mirror.url}/any.tar.gz", "--data-root", str(tmp_path / "d")]
    assert main(["data", "download", "grocery", *arguments]) == 0
    said = capsys.readouterr().out
    assert "incomplete: 12 of 5421 images, 4 of 81 classes" in said
    assert "(2 queries, 2 gallery)" in said


@pytest.mark.slow
def test_there_is_nothing_to_download_of_data_in_memory(refusal):
    assert "data set 'ndigit' is built in memory" in refusal("data", "download", "ndigit")


SOP_RUN = ["run", "--method", "dul_cls", "--dataset", "sop", "--seeds", "5"]


@pytest.mark.slow
def test_a_dry_run_needs_no_weights_and_says_that_a_run_does(releases, monkeypatch, capsys):
    # Both take seconds of a large network.
    monkeypatch.setattr("bench.commands.dry_run.print_estimate", lambda *arguments: None)
    monkeypatch.setattr("bench.planning.checks._poolings", lambda *arguments: ("avg_max", "avg"))
    monkeypatch.setenv("BENCH_DATA", str(releases.sop().parent))
    assert main([*SOP_RUN, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "dul_cls on sop: 5 replicates, each a study of 10 trials (tuned)" in out
    batches = "batches of 3 classes x 3 images instead of 32 classes x 4 images"
    assert err == f"sop has 3 training classes of at most 3 images: {batches}\n"
    missing = out.splitlines()[-1]
    assert missing.startswith("missing: no package and no cache of timm or torch has ImageNet weights of 'bn_inc")
    for refused in (SOP_RUN, [*SOP_RUN, "--frozen", "--dry-run"]):
        assert main(refused) == 2
        assert capsys.readouterr() == ("", f"bench: {missing.removeprefix('missing: ')}\n")


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["sop", "inshop", "cub200", "cars196"])
def test_a_dry_run_needs_no_images_and_says_that_a_run_does(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bench.planning.checks._poolings", lambda *arguments: ("avg_max", "avg"))
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    asked = ["run", "--method", "dul_cls", "--weights", "none", "--dataset", dataset]
    assert main([*asked, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert f"dul_cls on {dataset}: 5 replicates, each a study of 10 trials (tuned)" in out
    assert f"{dataset} is not here: no estimate of its time and disk" in out
    assert "batches of" not in err  # the release has enough classes and images
    assert main(asked) == 2
    assert capsys.readouterr().err == f"bench: {out.splitlines()[-1].removeprefix('missing: ')}\n"


@pytest.mark.slow
def test_the_outline_of_a_release_has_its_numbers_and_no_file():
    outline = SOP.outline(View())
    split = outline.train_val()
    assert len(split.train) + len(split.val) + len(outline.test()) == 120053
    assert split.train.num_classes + split.val.num_classes == 11318
    assert outline.test().num_classes == 11316
    with pytest.raises(DataError):
        split.train.evaluation(torch.arange(1))


@pytest.mark.slow
def test_the_command_of_the_project_on_an_empty_machine(sop_zip, tmp_path):
    """Downloaded from a mirror, then run on small images, without another word on where anything is."""
    bench = Path(sys.executable).with_name("bench")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BENCH_", "XDG_", "HF_"))}
    environment = kept | {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()

    def call(*arguments, **more):
        done = subprocess.run(
            [bench, *arguments], cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=1500
        )
        assert done.returncode == 0, done.stderr
        return done

    with serving(Mirror(sop_zip)) as server:
        said = call("data", "download", "sop", "--mirror", f"{server.url}/Stanford_Online_Products.zip").stdout
    assert said.endswith("next: bench run --method dul_cls --dataset sop --allow-partial --seeds 5\n")
    small = ("--set", "optim.epochs=1", "--set", "data.image_size=64", "--set", "data.resize=72")
    run = (*SOP_RUN, "--studies", "1", "--trials", "2", "--allow-partial", "--weights", "none", *small)
    done = call(*run)
    assert "batches of 3 classes x 3 images instead of 32 classes x 4 images" in done.stderr
    assert "7 trainings done" in done.stderr
    assert "MAP@R" in done.stdout
    (tmp_path / "home" / ".local" / "share" / "bench").rename(tmp_path / "moved")
    assert "dul_cls" in call(*run, "--dry-run", "--on-existing", "rerun", BENCH_DATA=str(tmp_path / "moved")).stdout
