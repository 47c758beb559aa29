"""Write the list of options in docs/options.md from the command itself: ``uv run python .ci/option_table.py``."""

import re
from pathlib import Path
from typing import Any

import typer
from bench.cli import app
from bench.planning.experiment import COMPUTED, COMPUTED_RARELY, SETTINGS, TUNED

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
BEGIN, END = "<!-- begin: .ci/option_table.py -->\n\n", "<!-- end -->\n"


def current(text: str) -> str:
    """The page with the options of ``bench run`` that change results, each with the first clause of its help."""
    bench: Any = typer.main.get_command(app)
    context: Any = typer.Context(bench)
    run = bench.get_command(context, "run")
    lines = []
    for section in (COMPUTED, SETTINGS, COMPUTED_RARELY, TUNED):
        for param in run.get_params(context):
            if getattr(param, "rich_help_panel", "") == section:
                option, meaning = param.get_help_record(context)
                lines.append(f"* `{option}`: {re.split(r'[.;:] (?![^(]*[)])|[.]$', meaning)[0]}\n")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "".join(lines) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
