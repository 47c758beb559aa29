"""Help of a command with many options: its options in sections, as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand


class SectionedCommand(TyperCommand):
    """A command whose ``--help`` lists its options in sections.

    Typer's own panels are boxes drawn by Rich, which are slow to import and of no use in a pipe.
    """

    sections: ClassVar[Mapping[str, tuple[str, ...]]]
    """Names of parameters by the title of their section; parameters without a section come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of every section, in the order of :attr:`sections`, and then all other options."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other options"):
            formatter.write_dl([record for record in records.values() if record])
