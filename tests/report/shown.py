"""Documents of a report as their files have them."""

from __future__ import annotations

from bench.report.comparison import comparison_document
from bench.report.render import files_of


def markdown(document):
    """Text of the Markdown file."""
    return files_of(document)[f"{document.name}.md"]


def latex(document):
    """Text of the LaTeX file."""
    return files_of(document)[f"{document.name}.tex"]


def to_markdown(rows, untested=None):
    """The comparison of methods in Markdown."""
    return markdown(comparison_document(rows, untested))


def to_latex(rows, untested=None):
    """The comparison of methods in LaTeX."""
    return latex(comparison_document(rows, untested))


def comparison_frame(rows):
    """Numbers of the comparison of methods."""
    return comparison_document(rows).numbers
