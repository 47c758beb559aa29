"""Texts of users in Markdown, LaTeX and CSV: one function per format.

Names of confidences, files, settings and classes and the reasons of failures come from users, plug-ins and files. None
of them may end a cell, start a command or become a formula.
"""

from __future__ import annotations

import re

import pandas as pd

from ..errors import printable
from ..store.pinned import Pinned

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "_%&#${}"},
        "\\": "\\textbackslash{}",
        "^": "\\^{}",
        "~": "\\textasciitilde{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$\\mid$",
        "±": "$\\pm$",
    }
)

_FORMULA = tuple("=+-@")
"""Characters with which a text starts that spreadsheets take for a formula."""


def latex_text(text: str) -> str:
    r"""Escape the characters that LaTeX would take for commands, and write signs such as ± in math mode.

    Example:
        >>> latex_text("a_b > 1 ± 2 %")
        'a\\_b $>$ 1 $\\pm$ 2 \\%'
    """
    text = printable(text)
    escaped = text.translate(_LATEX)
    # After the end of a row these would be its arguments.
    return f"{{{escaped[0]}}}{escaped[1:]}" if text[:1] in ("[", "*") else escaped


def markdown_text(text: str) -> str:
    r"""Escape the characters that Markdown or HTML would take for markup; underscores inside words are none.

    Example:
        >>> markdown_text("proxy_anchor [released] | *x* <b> _y_")
        'proxy_anchor [released] \\| \\*x\\* &lt;b> \\_y\\_'
    """
    text = re.sub(r"[\\`*|~$]", r"\\\g<0>", printable(text).strip())
    text = re.sub(r"&(?=[#\w])", "&amp;", text).replace("<", "&lt;")
    text = re.sub(r"\](?=[(\[:])", r"\\]", text)
    text = re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", lambda found: "\\_" * len(found[0]), text)
    # At the start of a line these make headings, lists, quotations and rules.
    return re.sub(r"^(\d*)(>|[#+=.)-](?=[\s#=+-]|$))", r"\1\\\2", text)


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV in which no text is a formula or several lines.

    A text that starts like a formula gets an apostrophe in front of it, unless it is a number or a lone dash. Control
    characters are shown as escapes, line breaks as spaces.

    Example:
        >>> csv_text(pd.DataFrame({"name": ["=1+1", "-", "a", "-0.5"], "value": [-1.0, 2.0, 3.0, 4.0]})).split()
        ['name,value', "'=1+1,-1.0", '-,2.0', 'a,3.0', '-0.5,4.0']
    """
    safe = {}
    for name in frame.columns:
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column):
            changed = {text: _harmless(text) for text in column.unique() if _harmless(text) != text}
            if changed:
                safe[name] = column.map(lambda text, changed=changed: changed.get(text, text))
    table = frame.assign(**safe).rename(columns=_harmless)
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def _harmless(text: object) -> object:
    if isinstance(text, Pinned):
        text = text.text
    if not isinstance(text, str):
        return text
    text = printable(text)
    if not text.lstrip().startswith(_FORMULA) or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
