"""The words of the help, and bars that wait for the first step."""

import io
import re
import sys

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from segcal.cli import app
from segcal.cli.app import counting
from segcal.types import UserError


def verbs():
    group = get_command(app)
    names = [[name] for name in group.commands if name != "list"]
    return [[], ["list"], *names, *(["list", name] for name in group.commands["list"].commands)]


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_help_names_values_by_words(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(app, [*verb, "--help"]).stdout
    assert not re.search(r"<(str|int|float|bool|path|list.*)>", text)


def test_options_have_the_word_of_their_type(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(app, ["train", "--help"]).stdout
    assert re.search(r"--epochs +N +Short for", text)
    assert re.search(r"--out +PATH +", text)
    assert re.search(r"--set +TEXT +", text)
    assert re.search(r"--again +Do it again", text)
    assert re.search(r"data +PATH +A prepared", text)


def test_a_bar_appears_with_the_first_step(monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, width=100)
    monkeypatch.setattr(sys.modules["segcal.cli.app"], "Console", lambda **_: console)
    with pytest.raises(UserError), counting("working"):
        raise UserError("nothing to do")
    with counting("working"):
        pass
    assert shown.getvalue() == ""
    with counting("working") as progress:
        progress(1, 2)
    assert "working" in shown.getvalue()
    assert "1/2" in shown.getvalue()
