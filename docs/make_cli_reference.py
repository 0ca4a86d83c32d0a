"""Write `docs/cli.md`, the reference of the command line, from the command line itself.

python docs/make_cli_reference.py            writes docs/cli.md
python docs/make_cli_reference.py --print    prints it instead; the tests compare that with the file
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).with_name("cli.md")
# stands for the number of cores while defaults are read: the page must not depend on the machine
CORES = 1_000_003

HEAD = """\
<!-- Written by docs/make_cli_reference.py from the help texts in src/segcal/cli. -->
# Command line

Results go to standard output, progress and notes to standard error. `--json`, where it is listed,
prints the result as JSON. Finished work is left alone unless `--again` is given. A mistake in what
was asked for is one sentence and exit code 2; a study in which a cell failed ends with exit code 1.
`segcal --version` prints the version; `--help` after a verb prints what stands here.
"""


def reference() -> str:
    """The page: a section per verb, in the order of the help."""
    os.cpu_count = lambda: CORES
    # The import waits: defaults are read on import, with cores counted our way.
    from segcal.cli import app  # noqa: PLC0415

    group: Any = typer.main.get_command(app)
    names = group.list_commands(None)
    parts = [
        HEAD,
        *(
            section
            for name in names
            for section in _sections(f"segcal {name}", group.commands[name])
        ),
    ]
    return "\n".join(parts)


def _sections(path: str, verb: Any) -> Iterator[str]:
    """A verb, or the verbs of a group."""
    if hasattr(verb, "commands"):
        for name, inner in verb.commands.items():
            yield from _sections(f"{path} {name}", inner)
        return
    shown = [param for param in verb.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    usage = " ".join(
        [
            path,
            *(_place(param) for param in arguments),
            *(_needed(param) for param in options if param.required),
        ]
    )
    example = verb.epilog.removeprefix("Example: ")
    yield f"## {path}\n\n{_plain(verb.help)}\n\n```text\n{usage} [OPTIONS]\n```\n"
    if arguments:
        yield _table(
            "argument",
            "needed",
            [(f"`{_place(p)}`", "yes" if p.required else "no", p) for p in arguments],
        )
    yield _table("option", "default", [(_names(p), _default(p), p) for p in options])
    yield f"Example:\n\n```sh\n{example}\n```\n"


def _table(first: str, second: str, rows: list[tuple[str, str, Any]]) -> str:
    lines = [f"| {first} | {second} | what |", "| --- | --- | --- |"]
    lines += [f"| {name} | {value} | {_plain(param.help or '')} |" for name, value, param in rows]
    return "\n".join(lines) + "\n"


def _place(param: Any) -> str:
    """How an argument is written: `RUN`, `IMAGES...`."""
    return f"{param.metavar or param.name.upper()}{'...' if param.nargs == -1 else ''}"


def _needed(param: Any) -> str:
    return f"{param.opts[0]} {param.name.upper()}"


def _names(param: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts)) + (
        " (repeat)" if param.multiple else ""
    )


def _default(param: Any) -> str:
    """What holds if nothing is said; nothing for a switch that is off and where the help
    says it.
    """
    if param.required:
        return "needed"
    if param.default == CORES:
        return "number of cores"
    known = isinstance(param.default, (str, int, float, Path)) and not isinstance(
        param.default, bool
    )
    return f"`{param.default}`" if known and str(param.default) else ""


def _plain(text: str) -> str:
    """One line that Markdown shows as it is.

    >>> _plain("as <plan>")
    'as &lt;plan>'
    """
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(reference(), end="")
    else:
        PAGE.write_text(reference(), encoding="utf-8")
