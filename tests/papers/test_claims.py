"""Claims: the shipped file is true to the published numbers, faults are named; what the command prints and writes."""

from __future__ import annotations

import json

import pytest
import typer
from bench.cli import app
from bench.errors import UserError
from bench.papers.claims import FORMS, commands, published_differences, read_ledger
from bench.papers.items import find_item

from tests.papers.conftest import HEAD, claim, runs
from tests.records import stored
from tests.refusals import one_line

PAPERS = {"per", "el", "nir", "hib", "pfe", "dul", "scf", "url"}
PAPERS |= {"mahalanobis", "holue", "magface", "adaface", "cr_fiqa"}

AGAINST = {("el-beats-sample-based", "sop"), ("per-pfe-scorer", "inshop_merged"), ("per-scf-scorer", "cub200")}
"""Claims that the paper's own numbers do not bear out on a data set; their notes say so."""


@pytest.fixture(scope="module")
def shipped(site):
    return read_ledger(None, site)


def test_the_shipped_claims_cover_every_paper(shipped):
    assert len(shipped.claim) >= 35
    assert {each.paper for each in shipped.claim} == set(shipped.paper) == PAPERS
    assert len({each.says for each in shipped.claim}) == len(shipped.claim)


def test_published_numbers_bear_out_the_claims(shipped):
    sign = {"higher": 1, "lower": -1}
    found = {
        (each.id, dataset): sign[each.direction] * value
        for each in shipped.claim
        if each.direction != "equal"
        for dataset, value in published_differences(each).items()
    }
    assert len(found) > 60
    assert {key for key, lead in found.items() if lead <= 0} == AGAINST
    assert all(each.note for each in shipped.claim if each.id in dict(AGAINST))


def test_a_published_difference_is_that_of_the_table(shipped):
    by_id = {each.id: each for each in shipped.claim}
    cars = published_differences(by_id["per-dul-cls-map-at-r"])["cars196"]
    assert cars == pytest.approx(19.54 - 19.05)  # CosFace is the better one of the two
    assert published_differences(by_id["nir-uniformity"]) == pytest.approx({"cub200": -0.006, "cars196": -0.007})
    assert published_differences(by_id["hib-matching"]) == {}


def test_claims_with_a_table_name_data_sets_of_that_table(shipped):
    for each in shipped.claim:
        if each.tables:
            known = {name for table in each.tables for name in find_item(table).item.datasets}
            assert set(each.datasets) <= known, each.id


@pytest.mark.slow
def test_commands_of_both_forms_are_ones_that_the_program_understands(shipped, site):
    assert all(commands(each, site) for each in shipped.claim)
    for line in {line for each in shipped.claim for form in FORMS for line in commands(each, site, form)}:
        program, *rest = line.split()
        assert program == "bench"
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name, *rest = rest
            command = command.commands[name]
        command.make_context(name, rest)  # raises at an unknown option


def test_commands_of_claims_whose_sides_differ_in_a_setting_or_a_scorer(ledger, site):
    found = ledger(
        claim("pins", a='method = "dul_cls", set = ["method.distribution=vmf"]', b='{ method = "$base" }'),
        claim("scorers", a='method = "pfe", scorer = "cosine"', b='{ method = "pfe", scorer = "mls" }'),
    )
    run = "bench run --method {} --dataset ndigit --seeds 5 --hparams default"
    assert [commands(each, site) for each in found.claim] == [
        [run.format("dul_cls") + " --set method.distribution=vmf", run.format("cosface")],
        [run.format("pfe") + " --scorers mls"],
    ]
    assert commands(found.claim[1], site, "released") == [run.format("pfe") + " --fidelity released --scorers mls"]


def test_a_claim_of_rows_and_a_column_has_their_methods_and_metric(ledger):
    table = 'tables = ["per/table4"]\ncolumn = "MAP@R"'
    text = (
        claim(more=table)
        .replace('{ method = "dul_cls" }', '"PFE, sampling + cosine"')
        .replace('metric = "map_at_r"\n', "")
    )
    (found,) = ledger(text).claim
    assert (found.metric, found.variant) == ("map_at_r", ("reranked", ""))
    assert (found.a.method, found.a.scorer, found.b[0].method) == ("pfe", "sampled_cosine", "cosface")
    (own,) = ledger(
        claim(a='method = "pfe", row = "PFE, MLS"', b='{ method = "pfe", row = "PFE, MLS" }', more=table)
    ).claim
    assert (own.a.scorer, own.variant) == ("own", ("",))  # what is given is not from the table


TABLE, EQUAL = 'tables = ["per/table1"]\ncolumn = "MAP@R"', claim(direction="equal")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (claim(more='colour = "red"'), "claim 'one': colour: unknown key"),
        (claim(a='methd = "pfe"'), "claim 'one': a.method: Field required"),
        (claim(a='method = "dul_clss"'), "claim 'one': unknown method 'dul_clss'; did you mean 'dul_cls'?"),
        (claim("Not an id"), "claim 'Not an id': id: String should match pattern"),
        (claim() + claim(), "claim 'one': 2 claims have this id"),
        (claim().replace("map_at_r", "map_at_s"), "claim 'one': unknown metric 'map_at_s'; did you mean 'map_at_r'?"),
        (claim().replace("cub200", "cub20"), "claim 'one': unknown data set 'cub20'; did you mean 'cub200'?"),
        (claim().replace('["cub200"]', "[]"), "claim 'one': name the data sets of the paper"),
        (claim(more='split = "test_rain"'), "claim 'one': unknown split 'test_rain'"),
        (claim(a='method = "pfe", scorer = "msl"'), "claim 'one': unknown scorer 'msl'; did you mean 'mls'?"),
        (claim(a='method = "pfe", confidence = "norm"'), "claim 'one': map_at_r judges no confidence"),
        (claim(a='method = "pfe", set = ["method.x=1"]'), "claim 'one': unknown setting 'method.x'"),
        (claim(a='method = "pfe", set = ["method"]'), "claim 'one': --set method: expected KEY=VALUE"),
        (claim(a='method = "pfe", row = "PFE"'), "claim 'one': a row or column needs the tables"),
        (claim(more='tables = ["per/table9"]'), "claim 'one': unknown table 'per/table9'"),
        (claim(more='tables = ["per/table1"]\ncolumn = "x"'), "claim 'one': unknown column 'x'"),
        (claim(a='method = "pfe", row = "x"', more=TABLE), "claim 'one': unknown row 'x'"),
        (EQUAL.replace("map_at_r", "spectral_decay"), "claim 'one': spectral_decay has no region of equivalence"),
        (claim(more=TABLE).replace('{ method = "dul_cls" }', '"DUL-clss"'), "did you mean 'DUL-cls'?"),
        (claim(more="tables = 5"), "claim 'one': tables: Input should be a valid tuple"),
        ("[[claim]]\n", "claim number 1: id: Field required"),
        ("a = \n", "not valid TOML"),
        ("a." * 200 + "b = 1\n", "not valid TOML: a line has more than 100 dots"),
    ],
)
def test_a_fault_is_one_line_with_the_file_and_the_claim(text, said, tmp_path, site):
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + text)
    message = one_line(UserError, read_ledger, path, site)
    assert message.startswith(f"{path}: ")
    assert said in message


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Results folders ``one`` and ``two``: each has one half of a claim."""
    for name, records in {
        "one": runs("dul_cls", [0.60, 0.62, 0.61]),
        "two": runs("cosface", [0.50, 0.521, 0.508]),
    }.items():
        stored(tmp_path / name, records)
    (tmp_path / "mine.toml").write_text(HEAD + claim())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_records_of_several_folders_are_taken_together(folders, bench):
    asked = ("paper", "claims", "--claims", "mine.toml", "--results")
    code, out, err = bench(*asked, "one")
    assert (code, err) == (0, "")
    assert "no records of cosface" in out
    code, out, err = bench(*asked, "one", "--results", "two", "--out", "here")
    assert (code, err) == (0, "")
    assert "+10.03" in out
    assert out.splitlines()[1].endswith("holds")
    assert sorted(path.name for path in (folders / "here").iterdir()) == ["claims.csv", "claims.md"]
    assert "| holds |" in (folders / "here/claims.md").read_text()
    found = json.loads(bench(*asked, "two", "--results", "one", "--json")[1])
    corrected = [line for line in found if line["fidelity"] == "corrected"]
    assert [(line["claim"], line["verdict"], line["seeds"]) for line in corrected] == [("one", "holds", 3)]


def test_the_shipped_claims_say_which_command_makes_their_records(folders, bench):
    code, out, _ = bench("claims", "--results", "one", "--paper", "hib")
    assert code == 0
    assert "    bench run --method hib,margin --dataset ndigit --seeds 5 --hparams default" in out
    assert "per-" not in out


def test_bad_input_is_one_line(folders, refusal):
    for arguments, said in (
        (("--results", "one", "--paper", "hib2"), "unknown paper 'hib2'; did you mean 'hib'?"),
        (("--results", "one", "--claims", "none.toml"), "none.toml: No such file or directory"),
        (("--results", "nowhere"), "nowhere"),
    ):
        assert said in refusal("claims", *arguments)
