"""Needs of a run: software, code, data and folders that every machine of a cluster must have in common."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ..errors import UserError
from ..planning.checks import files_hash, weights_hash
from ..planning.plan import Plan, TestPlan, versions_of
from ..site import Site
from ..store.specs import TrainSpec

PACKAGES = ("probembed", "torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "faiss-cpu")
"""Packages whose versions must agree: those that compute values."""

LOOK = 1.0
"""Seconds between two looks for a file that another machine has written."""


class PlanNeeds(BaseModel):
    """Needs of the trainings and tests of one method on one data set, with ids of code, data and starting weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: TrainSpec
    testing: TestPlan
    folds: tuple[int, ...]


class Needs(BaseModel):
    """Needs of a run: software, plans, and the claim of its driver, which machines see that share its folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    software: dict[str, str]
    driver: str
    plans: tuple[PlanNeeds, ...]


def software() -> dict[str, str]:
    """Versions of Python (without its last number) and of :data:`PACKAGES` here, by name."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def needs_of(plans: Iterable[Plan], site: Site, driver: Path) -> Needs:
    """Needs of some plans; the claim of the driver is a file whose name no other process has."""
    return Needs(
        software=software(),
        driver=str(driver),
        plans=tuple(
            PlanNeeds(template=plan.template, testing=plan.testing, folds=plan.validate_folds) for plan in plans
        ),
    )


def check(needs: Needs, site: Site, alive: Callable[[str], None]) -> None:
    """Check that this machine has what a run needs, and decode the photographs of its data sets into the cache."""
    here = software()
    for name, wanted in needs.software.items():
        if here.get(name) != wanted:
            raise UserError(f"it has {name} {here.get(name)}, this run {wanted}; install the same on both")
    alive("look for the results folder")
    if not visible((Path(needs.driver),), site.hidden_for):
        raise UserError(f"it does not see the results folder {site.results}; every node needs it at the same path")
    if not os.access(site.results, os.W_OK):
        raise UserError(f"it may not write to the results folder {site.results}")
    for plan in needs.plans:
        alive(f"check code and data of {plan.template.method} on {plan.template.dataset}")
        _check_plan(plan, site)
    for key in {(plan.template.dataset, repr(plan.template.view)): plan for plan in needs.plans}.values():
        _prepare(key, site, alive)


def visible(paths: Iterable[Path], seconds: float) -> bool:
    """Wait until files exist that another machine may have written: a network file system can hide fresh ones."""
    end = time.monotonic() + seconds
    missing = [path for path in paths if not path.exists()]
    while missing and time.monotonic() < end:
        time.sleep(min(LOOK, seconds))
        for folder in {path.parent for path in missing}:
            if folder.is_dir():
                os.listdir(folder)  # makes a client of NFS ask the server
        missing = [path for path in missing if not path.exists()]
    return not missing


def _check_plan(plan: PlanNeeds, site: Site) -> None:
    spec = plan.template
    what = f"{spec.method} on {spec.dataset}"
    scorers = (site.methods.method(spec.method).scorer, *plan.testing.scorers)
    if versions_of(spec, plan.testing.tests, scorers, site) != (spec.versions, plan.testing.versions):
        raise UserError(f"its code of {what} is not that of this run; give every node the same code and plug-ins")
    if weights_hash(spec.backbone, site.weights) != spec.weights:
        raise UserError(f"its weights of {spec.backbone} are not those of this run; copy the same file to every node")
    data = site.dataset(spec.dataset, spec.view)
    same = data.soft_labels_sha256 == plan.testing.soft_labels
    if spec.view:
        same &= data.partial == spec.partial and files_hash(data, spec.fold, spec.folds) == spec.files
    if not same:
        raise UserError(f"its files of data set {spec.dataset} are not those of this run (--data-root)")


def _prepare(plan: PlanNeeds, site: Site, alive: Callable[[str], None]) -> None:
    from ..datasets.files import DataError
    from ..datasets.releases import PhotoDataset

    data = site.dataset(plan.template.dataset, plan.template.view)
    if not isinstance(data, PhotoDataset):
        return
    try:
        for fold in plan.folds:
            data.prepare(fold, plan.template.folds, lambda what, done, total: alive(f"{what}: {done} of {total}"))
    except DataError as error:
        raise UserError(str(error)) from None
