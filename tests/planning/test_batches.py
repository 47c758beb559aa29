"""Batches fit small data sets: default sizes are lowered and a line says so, sizes set by hand are kept or refused."""

import pytest
from bench.errors import UserError
from bench.planning.checks import Sizes, fitting_batches
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.protocols.recipes.folder import RECIPE
from bench.site import Site

from tests.photographs import write_photographs

USUAL = {"data.classes_per_batch": 16, "data.images_per_class": 4}
BOTH = frozenset(USUAL)


def _built(tmp_path, root, *pins, methods=("cosface",), **request):
    site = Site(results=str(tmp_path / "r"), data_root=str(root), weights="none")
    asked = {"methods": methods, "datasets": ("folder",), "backbone": "convnet", "set": pins, **request}
    return build_plans(Experiment(**asked), site)


@pytest.mark.parametrize(
    ("sizes", "pinned", "fitting"),
    [
        (Sizes(16, 4, 5), set(), {}),
        (Sizes(15, 4, 5), set(), {"data.classes_per_batch": 15}),
        (Sizes(99, 3, 5), set(), {"data.images_per_class": 3}),
        (Sizes(9, 1, 3), set(), {"data.classes_per_batch": 9, "data.images_per_class": 2}),
        (Sizes(2, 2, 2), set(), {"data.classes_per_batch": 2, "data.images_per_class": 2}),
        (Sizes(99, 3, 5), BOTH, {}),
    ],
)
def test_sizes_are_lowered_to_what_there_is_and_never_raised(sizes, pinned, fitting):
    assert fitting_batches("d", USUAL, pinned, sizes) == fitting


@pytest.mark.parametrize("sizes", [Sizes(1, 4, 2), Sizes(4, 4, 1)])
def test_one_class_is_too_few_to_train_or_to_select_on(sizes):
    with pytest.raises(UserError, match=r"training and . validation classes, training needs at least 2 of each; go"):
        fitting_batches("d", USUAL, set(), sizes, instead="go home")
    # Nothing is selected on the validation classes.
    if sizes.classes > 1:
        assert fitting_batches("d", USUAL, set(), sizes, selects=False) == {"data.classes_per_batch": 4}


def test_a_size_set_by_hand_is_refused_with_the_largest_that_fits():
    with pytest.raises(UserError, match=r"use --set data\.classes_per_batch=9 or less"):
        fitting_batches("d", USUAL, BOTH, Sizes(9, 4, 4))


def test_batches_of_a_small_folder_are_part_of_every_unit_and_said_once(tmp_path):
    root = write_photographs(tmp_path / "photos", 12, 3, (5, 4))
    built = _built(tmp_path, root, methods=("cosface", "pfe", "dul_cls"))
    assert built.lines == (
        "folder has 4 training classes of at most 3 images: batches of 4 classes x 3 images instead of 16 classes x 4"
        " images",
    )
    specs = [plan.template for plan in built.plans] + [plan.base.template for plan in built.plans if plan.base]
    assert {(spec.batches.classes_per_batch, spec.batches.images_per_class) for spec in specs} == {(4, 3)}
    one = _built(tmp_path, root, "data.classes_per_batch=3", "data.images_per_class=5")
    assert one.lines == ()
    sizes = one.plans[0].template.batches
    assert (sizes.classes_per_batch, sizes.images_per_class) == (3, 5)
    with pytest.raises(UserError, match="batches of 5 classes need more than the 4 training classes of 'folder'"):
        _built(tmp_path, root, "data.classes_per_batch=5")


def test_where_the_default_fits_nothing_changes(tmp_path):
    root = write_photographs(tmp_path / "photos", 44, 4, (5, 4))
    built = _built(tmp_path, root)
    assert built.lines == ()
    assert built.plans[0].template.batches.model_dump() == dict(RECIPE.batches())


def test_too_few_classes_to_train_on_name_the_command_that_scores_without(tmp_path):
    root = write_photographs(tmp_path / "my photos", 8, 3, (5, 4))
    with pytest.raises(UserError) as error:
        _built(tmp_path, root)
    assert str(error.value) == (
        "data set 'folder' has 3 training and 1 validation classes, training needs at least 2 of each; 10 classes are"
        f" enough by default, and `bench score '{root}'` scores the untrained network on these"
    )
    assert (
        _built(tmp_path, write_photographs(tmp_path / "ten", 10, 3, (5, 4))).plans[0].template.batches.classes_per_batch
        == 3
    )
    # Nothing is selected, so one validation class does.
    built = _built(tmp_path, root, protocol="standardized", hparams="default")
    assert built.plans[0].template.batches.classes_per_batch == 4
