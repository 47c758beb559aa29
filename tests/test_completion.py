"""Shell completion as a shell asks for it, and the help of the command with the most options."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from bench.cli import app, main
from bench.planning.experiment import RARE_SECTIONS, SECTIONS_OF_HELP

BENCH = Path(sys.executable).with_name("bench")

COMPLETE = """
import sys
from bench.cli import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "pandas", "optuna", "matplotlib", "rich"} & set(sys.modules)
    assert not heavy, heavy
"""


def ask(line):
    """Offers for the last word of a command line, asked through the variables that the bash script sets.

    Every one is given without an import of anything heavy: a shell waits for it.
    """
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_BENCH_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMPLETE], env=os.environ | words, capture_output=True, text=True, timeout=900
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("bench ru", ["run"]),
        ("bench run --sampler t", ["tpe"]),
        ("bench run --tune-for b", ["both"]),
        ("bench run --on-existing re", ["rerun"]),
    ],
)
def test_commands_and_choices_are_completed(line, offers):
    assert ask(line) == offers


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_the_script_that_bash_installs_completes():
    script = (
        'eval "$(bench --show-completion)"; complete -p bench; COMP_WORDS=(bench run --sampler t); COMP_CWORD=3; '
        '_bench_completion bench; echo "offers: ${COMPREPLY[*]}"'
    )
    path = f"{BENCH.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert "_bench_completion bench" in done.stdout, done.stderr
    assert "offers: tpe" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "terminal"), [("80", "dumb"), ("120", "xterm-256color")])
def test_the_options_of_run_are_in_sections_of_plain_text(columns, terminal):
    environment = os.environ | {"COLUMNS": columns, "TERM": terminal}
    sections = {"--help": SECTIONS_OF_HELP, "--help-all": (*SECTIONS_OF_HELP, *RARE_SECTIONS)}
    for option, titles in sections.items():
        shown = subprocess.run([BENCH, "run", option], env=environment, capture_output=True, text=True).stdout
        assert re.findall(r"^(\S.*):$", shown, re.MULTILINE) == [*titles, "Other options"]
        assert shown.isascii()
        assert "\x1b" not in shown
        assert max(map(len, shown.splitlines())) <= int(columns)
        if option == "--help":
            assert len(re.findall(r"^  --", shown, re.MULTILINE)) <= 24


def test_every_option_of_run_is_in_a_section():
    options = typer.main.get_command(app).commands["run"].params
    apart = [option.name for option in options if option.rich_help_panel not in (*SECTIONS_OF_HELP, *RARE_SECTIONS)]
    assert apart == ["help_all"]


def _parameters(command):
    yield from command.params
    for each in getattr(command, "commands", {}).values():
        yield from _parameters(each)


def test_every_option_and_argument_has_a_help():
    every = list(_parameters(typer.main.get_command(app)))
    assert len(every) > 150
    assert [each.name for each in every if not each.help] == []


def test_without_a_command_the_first_hour_is_shown(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    commands = [line.split() for line in out.splitlines() if line.startswith("      bench ")]
    assert len(commands) == 6
    known = typer.main.get_command(app).commands
    for _, name, *arguments in commands:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= options


def test_kinds_are_listed_by_their_singular_too(capsys, refusal):
    assert main(["list", "methods"]) == 0
    plural = capsys.readouterr().out
    assert main(["list", "method"]) == 0
    assert capsys.readouterr().out == plural
    assert "did you mean 'methods'?" in refusal("list", "metods")
    assert "name what to list: methods, datasets" in refusal("list")


@pytest.mark.parametrize("command", [[], ["data"], ["paper"]])
def test_help_cuts_no_summary_at_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    assert len(shown.splitlines()) > 3
    assert ".." not in shown
