"""The command line: which commands there are, and what an error prints and returns."""

from __future__ import annotations

import errno
import re
import sys
from typing import Annotated

import typer

from . import errors
from ._version import __version__
from .commands import catalogue, data, doctor, embed, export, new, paper, rescore, results, run, score, test
from .commands.options import SectionedCommand
from .datasets.files import DataError

app = typer.Typer(
    name="bench",
    help=(
        "When is a probabilistic image embedding worth it? Trains probabilistic and deterministic metric-learning "
        "methods under one protocol and one tuning budget, and tests retrieval, verification and confidence.\n\n"
        "Without a command, `bench` shows the commands of a first hour."
    ),
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


FIRST_HOUR = """\
bench: when is a probabilistic image embedding worth it?

  compare two methods on real handwriting: 5 seeds, tables, a verdict; minutes on two cores
      bench run --method cosface,dul_cls --dataset ndigit --seeds 5 --trials 10
  read the results on one page
      bench report
  are the confidences of your own embeddings worth anything? your photographs, a folder per class?
      bench score mine.npz
      bench score photos
  try a method of your own
      bench new method mine
      bench test --method mine --plugin mine.py

`bench --help` lists all commands, `bench list methods` and `bench list datasets` what can be compared."""
"""What ``bench`` prints without a command."""


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Handle the options of ``bench`` itself: ``--version`` prints the version and exits."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(FIRST_HOUR)


app.command("run", cls=SectionedCommand)(run.run)
app.command("list")(catalogue.list_entries)
app.command("show")(catalogue.show)
app.add_typer(data.app, name="data")
app.command("test")(test.check_entries)
app.command("doctor")(doctor.doctor)
app.command("new")(new.new)
app.command("status")(results.status)
app.command("report")(results.report)
app.command("score")(score.score)
app.command("compare")(results.compare)
app.command("embed")(embed.embed)
app.command("export")(export.export)
app.command("share")(export.share)
app.add_typer(paper.app, name="paper")
app.command("reproduce", hidden=True)(paper.table)  # its name until the next release
app.command("claims", hidden=True)(paper.claims)  # likewise
app.command("rescore")(rescore.rescore)

_CLICK_ERROR = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    The code is 0 if all is done, 1 if something failed (its reason is printed), 2 for bad input and 130 after an
    interruption. The console script (:mod:`bench.start`) turns 130 into 143 after SIGTERM and 129 after SIGHUP.
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(argv, prog_name="bench", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (errors.UserError, DataError) as error:
        return _complain(str(error), 2)
    except errors.UnitFailed as error:
        return _complain(str(error), 1)
    except typer.Abort:
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if error.filename is None and not full:
            return _blame_plugin(error)
        # A folder that cannot be written, a disk that is full: the path and the reason are what helps.
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror}", 2)
    except Exception as error:
        return _usage_error(error) if isinstance(error, _CLICK_ERROR) else _blame_plugin(error)
    except BaseException as error:  # sys.exit in a plug-in, say
        return _blame_plugin(error)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"bench: {errors.printable(errors.installable(message))}\n")
    return code


def _blame_plugin(error: BaseException) -> int:
    """One line with the place of an error in a plug-in, or about memory; any other error goes on."""
    if errors.is_out_of_memory(error):
        return _complain(f"out of memory: {errors.first_line(error)}; try smaller settings", 1)
    if not errors.from_plugin(error):
        raise error
    line = f"{errors.place_of(error)}: {type(error).__name__}: {errors.first_line(error)}"
    return _complain(errors.shortened(line, errors.LINE - len("bench: ")), 2)


def _usage_error(error: Exception) -> int:
    message = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
    elif message:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "bench"
        text = errors.printable(" ".join(message.replace("Value error, ", "").split()))
        if unknown := re.match(r"No such command '(.*)'\.$", text):
            text = text[:-1] + errors.nearest(unknown[1], getattr(context and context.command, "commands", ()))
        elif text.startswith("Got unexpected extra argument"):
            text += "; several names are one list, such as --method cosface,dul_cls"
        sys.stderr.write(f"bench: {text} (see `{command} --help`)\n")
    return int(getattr(error, "exit_code", 2))
