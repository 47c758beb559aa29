"""Requests that no plan can be made of: each is refused in one line that says what to do."""

import pytest
from bench.site import Site

from tests.engine.conftest import weights  # noqa: F401 (a fixture)
from tests.plans import refused

TUNED, FROZEN, STANDARDIZED = {"hparams": "tuned"}, {"frozen": True}, {"protocol": "standardized"}
ON_SOFTMAX = TUNED | {"base": "norm_softmax"}
FOR_BOTH = TUNED | {"tuning": {"tune_for": "both", "studies": 1}}
FROM_LAYER = "model.train_from=features.8"
SETS = {
    "optim.lr": "expected KEY=VALUE",
    "optim.lr=fast": "expected float",
    "optim.epochs=-1": "out of range",
    "optim.compile=maybe": "expected true or false",
    "optim.milestones=50,25": "expected ascending numbers",
    "method.scale=-3": "does not fit method 'cosface'",
    "method.scael=3": "did you mean 'method.scale'",
    "optim.optimizer=adamm": "did you mean 'adam",
    "data.classes_per_batch=4000": "training classes of 'ndigit_smoke'",
    "data.class_seed=-1": r"data\.class_seed='-1': input should be greater than or equal to 0",
    "data.class_splits=1": r"data\.class_splits='1': input should be greater than or equal to 2",
    "data.class_seeds=1": r"did you mean 'data\.class_seed'",
    "model.train_from=features.99": r"no stage 'features.99'; near: features\.",
    "model.train_form=features.8": "did you mean 'model.train_from'",
    "model.head_start=pca": "is for a mean head that --frozen trains",
}
"""Values that do not fit."""

CORRUPTIONS = {
    "blurr": "unknown corruption 'blurr'; did you mean 'blur'",
    "crop,blur,blur:3": "blur is named twice",
    " ,": "--corruptions names no corruption",
    **{f"blur:{level}": "expected a level from 1 to 5" for level in ("", "strong", "3-", "0-1", "2-6")},
    "blur:0.8-0.2": "the smaller first",
    "noise:0.5-1.5": "from 0 to 1",
    "crop:1-5": "a crop of severity 1 is empty",
}
NO_TUNING = "--set tuning.retrain: here replicates have no tuning"
ASKED = {
    "a value is given twice": {"sweep": ("method.scale=8,8",)},
    "does not fit method 'cosface'": {"sweep": ("method.scale=8,-1",)},
    "did you mean 'method.scale'": {"sweep": ("method.scael=8,16",)},
    r"--sweep data\.class_seed: use --set data\.class_splits=3": {"sweep": ("data.class_seed=1,2,3",)},
    r"--sweep tuning\.sampler: it cannot be swept; use --set tuning\.sampler=gp, a run for each value": (
        TUNED | {"sweep": ("tuning.sampler=gp,tpe",)}
    ),
    "one form only": {"fidelity": "released"},
    r"data\.class_seed=1: leave it out, or data\.class_splits": {"set": ("data.class_seed=1", "data.class_splits=2")},
    r"data\.class_splits=2: settings are tuned on 4 folds, whose classes other splits test; use --folds 1": (
        TUNED | {"set": ("data.class_splits=2",), "preset": "mlrc"}
    ),
    "--select-by mls: not defined for the distributions of cosface": {"tuning": {"select_by": "mls"}},
    "did you mean 'cosine'": {"tuning": {"select_by": "cosin"}},
    "keeps the last epoch and selects nothing": {"tuning": {"select_by": "l2"}, "protocol": "standardized"},
    "^--tune-for both: .*--hparams default tunes nothing": FOR_BOTH | {"hparams": "default"},
    "^--tune-for both: .*selects everything by MAP@R": FOR_BOTH | {"preset": "per"},
    "--frozen: backbone convnet of data set 'ndigit_smoke' would stay at random weights": FROZEN | {"weights": None},
    "give --weights FILE": FROZEN | {"weights": "none"},
    "--frozen: published settings are those of trained backbones": FROZEN | {"hparams": "published"},
    "expected random or pca": FROZEN | {"set": ("model.head_start=axes",)},
    "nothing here trains a backbone": FROZEN | {"set": (FROM_LAYER,)},
    "cannot be compiled": {"set": (FROM_LAYER, "optim.compile=true")},
    "--trials 5: every replicate needs two, so --seeds 5 takes 10;": TUNED | {"trials": 5, "seeds": 5},
    "--trials 1: every replicate needs two": TUNED | {"trials": 1, "seeds": 1},
    r"--studies 3: as many as --seeds \(5\), or 1": TUNED | {"tuning": {"studies": 3}, "seeds": 5},
    NO_TUNING: TUNED | {"tuning": {"studies": 1, "retrain": True}},
    "--set tuning.first_study: here replicates have": {"tuning": {"first_study": 3}},
    "--studies 4: --hparams default tunes nothing": {"tuning": {"studies": 4}},
}
TRAINS_NOTHING = r"an ensemble trains nothing; .*--method norm_softmax,deep_ensemble$"
NO_STEPS = r"--set optim\.lr: nothing here is trained by steps; .*--method BASE,laplace$"
HOLDS_NONE_OUT = "^--tune-for both: .*holds out no classes and tunes nothing"
REFUSED = [
    *(("cosface", {"set": (pin,)}, said) for pin, said in SETS.items()),
    *(("cosface", {"corruptions": (asked,)}, said) for asked, said in CORRUPTIONS.items()),
    *(("cosface", asked, said) for said, asked in ASKED.items()),
    *(("cosface", {"sweep": (f"method.scale{none}",)}, "expected KEY=A,B,C") for none in ("", "=")),
    ("cosface", {"sweep": ("method.scale=8,16",), "set": ("method.scale=4",)}, "is set or swept already"),
    ("cosface", {"sweep": ("method.scale=8", "method.scale=16")}, "is set or swept already"),
    *(("cosface", FOR_BOTH | STANDARDIZED | {"hparams": name}, HOLDS_NONE_OUT) for name in ("tuned", "default")),
    ("cosface", TUNED | {"preset": "per", "tuning": {"retrain": True}}, NO_TUNING),
    ("hib", {"fidelity": "released_el"}, "one form only"),
    ("nir", {"set": ("method.form=published",)}, "form"),
    ("deep_ensemble", ON_SOFTMAX | {"set": ("optim.epochs=3",)}, TRAINS_NOTHING),
    ("deep_ensemble", ON_SOFTMAX | {"tuning": {"tune_for": "both", "select_by": "cosine"}}, TRAINS_NOTHING),
    ("laplace", ON_SOFTMAX | {"set": ("optim.lr=0.1",)}, NO_STEPS),
    ("scf", TUNED | {"base": "hib"}, "--base hib: scf needs a base with one weight per class"),
    ("deep_ensemble", TUNED | {"base": "hib"}, "--base hib: .* leave --base out"),
    ("pfe", TUNED | {"base": "vmf_loss"}, "--base vmf_loss: its softmax needs the spread of its own .* 'pfe' replaces"),
    ("scf", TUNED | {"base": "vmf_fl"}, "--base vmf_fl: its softmax needs the spread of its own"),
]


@pytest.mark.parametrize(("method", "asked", "said"), REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(method, asked, said, weights):  # noqa: F811
    start = asked.get("weights", weights)
    site = Site(results="unused", weights=None if start is None else str(start))
    refused(said, site, method, **{name: value for name, value in asked.items() if name != "weights"})
