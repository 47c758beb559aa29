"""Verdicts on claims: SciPy's tests decide, Holm's method adjusts them, and every gap has a name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from bench.papers.claims import read_ledger, region
from bench.papers.judge import ALPHA, findings, judge
from bench.papers.page import labels, seeds_of, texts_of, verdict_text
from bench.protocols.statistics.paired import power_of_seeds
from bench.store.specs import Pinned
from scipy import stats

from tests.papers.conftest import claim, record, runs

NOISE = np.array([0.001, -0.002, 0.0015, -0.001, 0.0005])
BASE = np.array([0.50, 0.52, 0.49, 0.51, 0.53])


def _sides(lead, **columns):
    """Records of DUL with a lead, and of CosFace."""
    return runs("dul_cls", BASE[: len(lead)] + lead, **columns) + runs("cosface", BASE[: len(lead)], **columns)


def _one(ledger, results, site, fidelity="corrected"):
    found = [each for each in findings(ledger, results, site) if each.fidelity == fidelity]
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "lead", "outcome", "reason"),
    [
        ("higher", 0.03, "holds", ""),
        ("higher", -0.03, "reversed", ""),
        ("higher", 0.0, "negligible", ""),
        ("higher", 0.0025, "negligible", "direction shown"),
        ("higher", -0.0025, "reversed", "negligible"),
        ("higher", 0.0055, "holds", ""),
        ("lower", -0.03, "holds", ""),
        ("lower", 0.0, "negligible", ""),
        ("lower", 0.03, "reversed", ""),
        ("equal", 0.0, "holds", ""),
        ("equal", 0.03, "reversed", ""),
        ("equal", -0.03, "reversed", ""),
    ],
)
def test_a_clear_difference_decides(direction, lead, outcome, reason, ledger, results, site):
    found = _one(ledger(claim(direction=direction)), results(_sides(lead + NOISE)), site)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert found.setting.dataset == "ndigit"


def _shipped(name, mean, half_width, results, site):
    """Finding on a shipped claim about verification on ``glyphs``, by five seeds with a mean lead and its interval."""
    (one,) = [each for each in read_ledger(None, site).claim if each.id == name]
    shape = np.array([-2, -1, 0, 1, 2]) / np.std([-2, -1, 0, 1, 2], ddof=1)
    lead = mean + shape * half_width / stats.t.ppf(0.975, 4) * 5**0.5
    place = {"metric": one.metric, "place": [("variant", one.variant[0])], "dataset": "glyphs"}
    sides = [runs(side.method, BASE, **place) for side in one.b]
    own = runs(one.a.method, BASE + lead, **place)
    ledger = read_ledger(None, site).model_copy(update={"claim": (one,)})
    (found,) = [each for each in findings(ledger, results(own, *sides), site) if each.fidelity == "corrected"]
    return found


@pytest.mark.parametrize(
    ("claim", "lead", "spread", "region", "said"),
    [
        # +0.07 [+0.03, +0.11] points; the paper has +0.83 and +0.9.
        ("per-dul-reg-verification", 0.0007, 0.0004, 0.00415, "negligible (direction shown)"),
        # The paper has +0.3 as well, which is inside the metric's region of half a point.
        ("per-scf-verification", 0.0030, 0.0010, 0.0015, "holds"),
    ],
)
def test_a_lead_is_judged_by_the_published_one(claim, lead, spread, region, said, results, site):
    found = _shipped(claim, lead, spread, results, site)
    assert (found.region, verdict_text(found)) == (pytest.approx(region), said)


def test_the_region_is_that_of_the_data_set_and_never_wider_than_the_metrics(site):
    by_id = {each.id: each for each in read_ledger(None, site).claim}
    assert region(by_id["per-pfe-scorer"], "cars196") == pytest.approx(0.0009)
    assert region(by_id["per-pfe-scorer"], "cub200") == 0.005
    assert region(by_id["per-pfe-scorer"], "inshop_merged") == pytest.approx(0.0009)  # there it is against the claim
    assert region(by_id["nir-generated-samples"], "ndigit") == pytest.approx(0.003)  # lower is claimed
    assert region(by_id["per-pfe-distribution"], "cars196") == 0.005  # equality
    assert region(by_id["hib-matching"], "ndigit") == 0.01  # nothing is published
    assert region(by_id["per-crop-scf-best"], "sop") == 0.0  # the metric has none


def test_seeds_still_needed_have_the_power_that_is_said(ledger, results, site):
    difference = 0.01 + 10 * NOISE
    found = _one(ledger(claim()), results(_sides(difference)), site)
    assert found.outcome == "undecided"
    seeds, sd = 5 + found.more_seeds, float(np.std(difference, ddof=1))
    effect = float(difference.mean())
    assert power_of_seeds(seeds, sd, effect, 2 * ALPHA) >= 0.8 > power_of_seeds(seeds - 1, sd, effect, 2 * ALPHA)
    assert found.reason == f"{found.more_seeds} more seeds"


def test_replicates_that_disagree_or_are_one_say_so_and_wait_for_no_more(ledger, results, site):
    lead = np.array([0.02, 0.03, -0.01, 0.04, 0.01])
    for count, reason in ((5, "4 of 5 replicates agree"), (1, "one replicate")):
        found = _one(ledger(claim()), results(_sides(lead[:count], replicate="study")), site)
        assert (found.outcome, found.reason, found.more_seeds) == ("undecided", reason, 0)
    # A lead that is practically none still has no direction, unless all of it is smaller than the claim's region.
    for factor, said in ((1, "undecided (4 of 5 replicates agree)"), (0.1, "negligible"), (-0.1, "negligible")):
        lead_of_each = factor * np.array([-0.0003, 0.0035, 0.0037, 0.0040, 0.0041])
        found = _one(ledger(claim()), results(_sides(lead_of_each, replicate="study")), site)
        assert verdict_text(found) == said
        assert min(found.p_holds, found.p_reversed) < ALPHA
    both = ledger(claim(b='{ method = "cosface" }, { method = "arcface" }'))
    less = runs("arcface", BASE + lead - [0.001, 0.09, 0.002, 0.08, 0.001], replicate="study")
    found = _one(both, results(_sides(lead, replicate="study"), less), site)
    assert max(found.rows, key=lambda row: row.p).reason is None
    assert (found.outcome, found.reason, found.more_seeds) == ("undecided", "4 of 5 replicates agree", 0)


def test_holms_method_counts_all_claims_on_a_data_set(ledger, results, site):
    # The first holds alone, and not next to four claims about which nothing is known.
    difference = 0.02 + 9 * NOISE
    records = results(
        *(_sides(difference, dataset=name) for name in ("ndigit", "glyphs")), runs("hib", BASE + 30 * NOISE)
    )
    others = [claim(f"other-{i}", a='method = "hib"', b='{ method = "cosface" }') for i in range(4)]
    alone = [each for each in findings(ledger(claim()), records, site) if each.fidelity == "corrected"]
    among = [each for each in findings(ledger(claim(), *others), records, site) if each.fidelity == "corrected"]
    assert [(each.setting.dataset, each.outcome) for each in alone] == [("glyphs", "holds"), ("ndigit", "holds")]
    p = stats.ttest_1samp(difference, 0, alternative="greater").pvalue
    assert 0.01 < p < 0.05
    by_data = {each.setting.dataset: each for each in among if each.claim.id == "one"}
    assert by_data["ndigit"].outcome == "undecided"
    assert by_data["ndigit"].p_holds == pytest.approx(5 * p)
    assert by_data["glyphs"].outcome == "holds"  # no other claim has records there


def test_a_claim_about_several_rivals_needs_all_and_is_reversed_by_one(ledger, results, site):
    both = ledger(claim(b='{ method = "cosface" }, { method = "hib" }'))
    best = runs("dul_cls", BASE + 0.03 + NOISE)
    won = _one(both, results(best, runs("cosface", BASE), runs("hib", BASE + NOISE)), site)
    assert won.outcome == "holds"
    lost = _one(both, results(best, runs("cosface", BASE), runs("hib", BASE + 0.06)), site)
    assert (lost.outcome, lost.decisive.about["b"]) == ("reversed", "hib")
    same = _one(both, results(best, runs("cosface", BASE), runs("hib", BASE + 0.03)), site)
    assert (same.outcome, same.decisive.about["b"]) == ("negligible", "hib")
    gap = _one(both, results(best, runs("cosface", BASE)), site)
    assert (gap.outcome, gap.reason) == ("no records", "no records of hib")


@pytest.mark.parametrize(("lead", "outcome", "reason"), [(-0.03, "reversed", ""), (0.03, "undecided", "one seed")])
def test_one_method_with_several_seeds_reverses_a_claim_and_all_of_them_are_needed_for_it(
    lead, outcome, reason, ledger, results, site
):
    both = ledger(claim(b='{ method = "cosface" }, { method = "hib" }'))
    difference = lead + NOISE
    found = _one(both, results(runs("dul_cls", BASE + difference), runs("cosface", BASE), runs("hib", BASE[:1])), site)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert np.isnan(found.p_holds)
    assert found.p_reversed == pytest.approx(stats.ttest_1samp(difference, 0, alternative="less").pvalue)


@pytest.mark.parametrize(
    ("records", "outcome", "reason"),
    [
        ((), "no records", "no records of dul_cls; no records of cosface"),
        ((runs("dul_cls", BASE),), "no records", "no records of cosface"),
        ((runs("dul_cls", BASE), runs("cosface", BASE, metric="aurc")), "no records", "no map_at_r of cosface"),
        ((runs("dul_cls", {0: 0.5, 1: 0.6}), runs("cosface", {2: 0.5, 3: 0.6})), "no records", "no common seed"),
        ((runs("dul_cls", [0.9]), runs("cosface", [0.1])), "undecided", "one seed"),
        # Settings are never mixed.
        ((runs("dul_cls", BASE), runs("cosface", BASE, hparams="tuned", trials=4)), "no records", None),
    ],
)
def test_what_is_missing_is_named_and_gives_no_verdict(records, outcome, reason, ledger, results, site):
    found = _one(ledger(claim()), results(*records), site)
    assert (found.outcome, found.reason) == (outcome, reason or found.reason)
    assert found.setting.dataset == ("ndigit" if records else "")


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        (BASE + 0.03 + NOISE, BASE[:3], "3 (dul_cls alone: seeds 3, 4)"),
        ([0.53, None, 0.54], [0.50, 0.50, 0.52], "2 (cosface alone: seed 1)"),  # undefined values are no values
    ],
)
def test_seeds_of_one_side_alone_are_named(own, other, said, ledger, results, site):
    (each,) = judge(ledger(claim()), results(runs("dul_cls", own), runs("cosface", other)), site)
    assert seeds_of(each) == said


def test_two_settings_of_a_data_set_have_a_row_and_a_name_each(ledger, results, site):
    tuned = {"hparams": "tuned", "trials": 4}
    records = results(*(_sides(0.03 + NOISE, **setting) for setting in ({}, tuned)))
    found = ledger(claim())
    verdicts = judge(found, records, site)
    assert [each.outcome for each in verdicts] == ["holds", "holds"]
    assert list(labels(verdicts).values()) == ["ndigit", "ndigit #2"]
    page = texts_of(found, verdicts, site)["claims.md"]
    assert "| ndigit #2 | reality_check; tuned once, 4 trials; convnet/64 | 1 |" in page


def test_a_setting_of_one_side_is_found_in_what_was_pinned(ledger, results, site):
    found = ledger(claim(a='method = "nir"', b='{ method = "nir", set = ["method.omega=0"] }'))
    records = results(
        runs("nir", BASE + 0.03 + NOISE, pinned=Pinned(settings={"optim.epochs": 3})),
        runs("nir", BASE, pinned=Pinned(settings={"method.omega": 0.0, "optim.epochs": 3})),
        runs("nir", BASE + 0.5, pinned=Pinned(settings={"method.omega": 1.0, "optim.epochs": 3})),
    )
    judged = _one(found, records, site)
    assert (judged.outcome, judged.setting.pinned.text) == ("holds", "optim.epochs=3")


def test_the_base_is_that_of_the_recipe(ledger, results, site):
    found = ledger(claim(a='method = "pfe"', b='{ method = "$base" }'))
    records = results(
        runs("pfe", BASE + 0.03 + NOISE, base="cosface"),
        runs("pfe", BASE - 0.2, base="arcface"),
        runs("cosface", BASE),
        runs("arcface", BASE + 0.2),
    )
    assert _one(found, records, site).outcome == "holds"


def test_a_confidence_is_read_by_its_name(ledger, results, site):
    text = claim(a='method = "hib"', b='{ method = "hib", confidence = "random" }').replace("map_at_r", "spearman_crop")
    own, random = ((("scorer", ""), ("confidence", name)) for name in ("method", "random"))
    alone = results(runs("hib", 0.5 + NOISE, "spearman_crop", own))
    assert _one(ledger(text), alone, site).reason == "no spearman_crop of hib: random"
    values = ({("spearman_crop", *own): 0.5 + noise, ("spearman_crop", *random): 0.0} for noise in NOISE)
    found = _one(ledger(text), results([record("hib", seed, each) for seed, each in enumerate(values)]), site)
    assert found.outcome == "holds"
    assert found.decisive.raw["difference_mean"] == pytest.approx(0.5 + NOISE.mean())


def test_a_public_code_can_flip_a_verdict(ledger, results, site):
    records = results(_sides(0.03 + NOISE), runs("dul_cls", BASE - 0.03 + NOISE, fidelity="released"))
    (each,) = judge(ledger(claim()), records, site)
    assert (each.outcome, each.released.outcome, each.flips) == ("holds", "reversed", True)
    (without,) = judge(ledger(claim(a='method = "soft_triple"', b='{ method = "cosface" }')), results(), site)
    assert without.released is None  # neither has a released form
    (gap,) = judge(ledger(claim()), results(_sides(NOISE)), site)
    assert (gap.released.outcome, gap.flips) == ("no records", False)


@pytest.mark.parametrize("corrected", [(), runs("dul_cls", BASE, hparams="tuned", trials=4)])
def test_records_of_the_public_codes_form_alone_are_judged(corrected, ledger, results, site):
    public = {"fidelity": "released"}
    records = results(runs("dul_cls", BASE - 0.03 + NOISE, **public), runs("hib", BASE, **public), corrected)
    (each,) = judge(ledger(claim(b='{ method = "hib" }')), records, site)
    assert (each.outcome, each.reason) == ("no records", "no records at this setting")
    assert (each.setting.dataset, each.released.outcome, each.flips) == ("ndigit", "reversed", False)


def test_equal_records_of_both_forms_are_one_test(ledger, results, site):
    # Without a released form the two findings rest on the same numbers; counted twice, p-values would be doubled.
    difference = 0.02 + 9 * NOISE
    records = results(runs("soft_triple", BASE + difference), runs("cosface", BASE))
    found = findings(ledger(claim(a='method = "soft_triple"')), records, site)
    p = stats.ttest_1samp(difference, 0, alternative="greater").pvalue
    assert [each.p_holds for each in found] == pytest.approx([p, p])


def test_equal_records_give_equal_files_in_any_order(ledger, results, site):
    found = ledger(claim(), claim("two", a='method = "hib"', b='{ method = "cosface" }'))
    parts = [runs("dul_cls", BASE + 0.03 + NOISE), runs("hib", BASE + 9 * NOISE), runs("cosface", BASE)]
    texts = set()
    for order in (parts, parts[::-1]):
        texts.add(tuple(texts_of(found, judge(found, results(*order), site), site).values()))
    assert len(texts) == 1
    page = texts.pop()[1]
    assert "| ndigit | reality_check; default; convnet/64 | 1 | 0 | 0 | 1 | 0 |" in page
    assert "bench run --method dul_cls,cosface --dataset ndigit --seeds 5 --hparams default" in page


TRAINED_ON_20 = [SimpleNamespace(trained=lambda cell, unit: SimpleNamespace(num_classes=20))]
"""Folders in which every training had 20 classes."""


def _on_splits(method, values):
    """Records of two seeds on each class split from the first on, whose mean is a value; of 30 test classes."""
    found = []
    for number, value in enumerate(values, 1):
        for seed, noise in enumerate((0.01, -0.01)):
            pinned = Pinned(settings={"data.class_seed": number})
            each = record(method, seed, {("map_at_r",): value + noise}, pinned=pinned)
            spec = each.spec.model_copy(update={"train": ("some",)})
            found.append(each.model_copy(update={"spec": spec, "test_classes": 30}))
    return found


@pytest.mark.parametrize("ratio", [0, 30 / 20], ids=["seed", "split"])
@pytest.mark.parametrize("direction", ["higher", "lower", "equal"])
def test_p_values_and_the_interval_are_students_on_class_splits_with_the_variance_of_nadeau_and_bengio(
    direction, ratio, ledger, results, site
):
    lead, count = np.array([0.012, 0.009, 0.014, 0.011]), 4
    sides = _on_splits("dul_cls", BASE[:count] + lead), _on_splits("cosface", BASE[:count])
    plain = (runs(name, BASE) for name in ("dul_cls", "cosface"))
    records = results(*plain, *sides) if ratio else results(_sides(lead))
    found = next(iter(findings(ledger(claim(direction=direction)), records, site, TRAINED_ON_20)))
    error = lead.std(ddof=1) * np.sqrt(1 / count + ratio)

    def above(bound):
        return stats.t.sf((lead.mean() - bound) / error, count - 1)

    if direction == "equal":
        wanted = max(above(-0.005), 1 - above(0.005)), min(1.0, 2 * min(above(0.005), 1 - above(-0.005)))
    else:
        wanted = (above(0), 1 - above(0))[:: 1 if direction == "higher" else -1]
    assert (found.p_holds, found.p_reversed) == pytest.approx(wanted)
    shown = found.decisive.raw
    assert (shown["ci95_low"], shown["ci95_high"]) == pytest.approx(
        stats.t.interval(0.95, count - 1, lead.mean(), error)
    )
    assert (seeds_of(found), found.decisive.unit) == (("4 splits", "split") if ratio else ("4", "seed"))
    if ratio:
        assert found.outcome == {"higher": "holds", "lower": "reversed", "equal": "undecided"}[direction]
        assert (found.more_seeds, found.reason) == (0, "")


@pytest.mark.parametrize(
    ("splits", "stores", "said"),
    [
        (1, TRAINED_ON_20, "5"),
        (3, [], "5"),  # an unknown number of training classes
        (3, TRAINED_ON_20, "3 splits (dul_cls alone: split 4)"),
    ],
)
def test_the_unit_is_the_split_from_two_common_ones_on(splits, stores, said, ledger, results, site):
    sides = (("dul_cls", 0.03, splits + 1), ("cosface", 0, splits))
    records = results(
        *(runs(name, BASE + lead) for name, lead, _ in sides),
        *(_on_splits(name, BASE[:count]) for name, _, count in sides),
    )
    found = next(iter(findings(ledger(claim()), records, site, stores)))
    assert (seeds_of(found), found.decisive.unit) == (said, "split" if "split" in said else "seed")
    assert found.outcome == ("holds" if said == "5" else "negligible")
