"""Plans as a run makes them: what a test does not name is the usual."""

import pytest
from bench.errors import UserError
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.site import Site


def planned(place, *methods, **asked):
    """Plans at default settings on the smallest data set, and their site, which is given or has its results there."""
    site = place if isinstance(place, Site) else Site(results=str(place))
    usual = {"methods": methods, "datasets": ("ndigit_smoke",), "hparams": "default"}
    return build_plans(Experiment.checked({**usual, **asked}), site).plans, site


def first_seed(plans):
    """Specification of the training of the first seed by method; bases come before heads."""
    found, done = {}, {}
    for plan in plans:
        done[plan.key] = plan.train_specs({}, 0, done[plan.base.key] if plan.base else None)
        found[plan.cell.method] = done[plan.key][0]
    return found


def refused(match, place, *methods, **asked):
    """Require that such plans are refused in one line."""
    with pytest.raises(UserError, match=match) as caught:
        planned(place, *methods, **asked)
    assert "\n" not in str(caught.value)
