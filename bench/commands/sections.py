"""Help of a command with many options: its options in sections, as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand


class SectionedCommand(TyperCommand):
    """A command whose ``--help`` lists its options in sections, and ``--help-all`` the rarely needed ones too.

    Typer's own panels are boxes drawn by Rich, which are slow to import and of no use in a pipe.
    """

    sections: ClassVar[Mapping[str, tuple[str, ...]]]
    """Names of parameters by the title of their section; parameters without a section come last."""
    rare: ClassVar[Mapping[str, tuple[str, ...]]]
    """Further sections, which only ``--help-all`` shows."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of every section, in the order of :attr:`sections`, and then all other options."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for sections, shown in ((self.sections, True), (self.rare, ctx.meta.get(ALL, False))):
            for title, names in sections.items():
                chosen = [records.pop(name) for name in names]
                if shown:
                    with formatter.section(title):
                        formatter.write_dl(chosen)
        with formatter.section("Other options"):
            formatter.write_dl([record for record in records.values() if record])


ALL = "bench.help_all"


def _help_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show every option and exit.", is_eager=True, callback=_help_all)
]
