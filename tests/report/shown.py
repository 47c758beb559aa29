"""What records say, from a tidy table and its roles, and documents as their files have them."""

import io

import numpy as np
import pandas as pd
from bench.report import comparison as compared
from bench.report import questions, ranks, seeds, views
from bench.report.compare import ask, decided
from bench.report.contender import CONTENDER_KEYS
from bench.report.frame import Measured, Results
from bench.report.render import files_of
from bench.report.seeds import seed_groups
from bench.report.write import Judged
from bench.store.folder import Store
from bench.store.records import COLUMNS, Columns, Role, Rows
from bench.store.specs import Pinned
from rich.console import Console


def tidy(lines):
    """Tidy table of some values; what a line does not name is the usual."""
    usual = {"protocol": "reality_check", "preset": "strict", "dataset": "d", "fidelity": "corrected"}
    usual |= {"hparams": "default", "trials": 0, "pinned": Pinned(), "scorer": "cosine", "fraction": np.nan}
    return pd.DataFrame([dict.fromkeys(COLUMNS, "") | usual | line for line in lines])


def roles_of(frame, **given):
    """Roles of the tests of a tidy table."""
    usual = {"primary_scorer": "cosine", "default_confidence": "norm", "probabilistic": False, "trainings": 0}
    return pd.DataFrame({"unit": frame["unit"].unique()}).assign(**{**usual, "train": "", "base_train": "", **given})


def joined(made):
    """One tidy table with its roles of several."""
    return [pd.concat(parts, ignore_index=True) for parts in zip(*made)]


def groups(frame, roles):
    """Values over seeds of every contender."""
    return seed_groups(measured(frame.merge(roles, on="unit")))


def results(rows):
    """Results that have such a table."""
    made = Results(())
    made.__dict__["measured"] = tuple(measured(rows))
    return made


def measured(rows):
    """Tests of a tidy table that has the columns of their roles, too; it need not have the others."""
    for _, own in rows.groupby([*CONTENDER_KEYS, "seed", "unit"], sort=True, dropna=False):
        lines = own.astype(object).where(own.notna(), None).to_dict("records")
        lines = [{**line, "n_queries": line.get("n_queries") or None} for line in lines]
        first = {"train": "", "base_train": "", **lines[0]}
        columns = Columns.model_construct(**{name: first[name] for name in Columns.model_fields})
        role = Role(**{name: first[name] for name in Role.model_fields if name in first})
        yield Measured(columns, role, Rows.of(lines), (first["unit"],))


def _of_groups(function):
    return lambda frame, roles, *others, **named: function(groups(frame, roles), *others, **named)


decisions_of = _of_groups(lambda own: views.decisions(own, ask(questions.PAIR, own)))
forms_of = _of_groups(lambda own: ask(questions.FORM, own))
over_datasets_of = _of_groups(ranks.over_datasets)
pairs_of = _of_groups(lambda own, names=(): decided(questions.pairs_of(own, names), questions.PAIR))
paired_with_base = _of_groups(lambda own: views.base_frame(ask(questions.BASE, own)))
corruptions = _of_groups(seeds.corruptions)
verdicts_of = _of_groups(lambda own: [row for row in ask(questions.CONFIDENCE, own) if row.about["chosen"]])


comparison_frame = compared.comparison_frame


def paired_methods(*data, **named):
    """Every two contenders, as their file has them."""
    return views.paired_frame(pairs_of(*data, **named))


def comparison(frame, roles):
    """Tables of the comparison."""
    return Judged(Store("."), results(frame.merge(roles, on="unit"))).comparison


def rows(frame, roles):
    """Rows of the comparison of the only data set."""
    return [row for part in comparison(frame, roles) for row in part.rows]


def markdown(document):
    """Text of the Markdown file."""
    return files_of(document)[f"{document.name}.md"]


def latex(document):
    """Text of the LaTeX file."""
    return files_of(document)[f"{document.name}.tex"]


def to_markdown(parts, untested=None):
    """The comparison of methods in Markdown."""
    return markdown(compared.comparison_document(parts, untested))


def to_latex(parts, untested=None):
    """The comparison of methods in LaTeX."""
    return latex(compared.comparison_document(parts, untested))


def judged(root, *made):
    """Decisions about methods that are made by hand (``page_records``)."""
    tests, splits = [], []
    for record in (record for each in made for record in each.records()):
        (splits if record.columns.pinned.class_seed else tests).append(record)
    return Judged(Store(root), Results(tuple(tests), splits=tuple(splits)))


def printed(show, *what, width=80, **options):
    """What a function prints in a terminal of some width."""
    out = io.StringIO()
    show(*what, Console(file=out, width=width, **options))
    assert max(map(len, out.getvalue().splitlines())) <= width
    return out.getvalue()
