"""The words of `--help` for what an option takes: PATH, TEXT, N; nothing for a switch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.core import TyperGroup

WORDS: dict[Any, str] = {bool: "", int: "N", float: "NUMBER", Path: "PATH", str: "TEXT"}


def word_of(annotation: Any) -> str:
    """The word for a type, for `X | None` and `list[X]` that of `X`.

    >>> word_of(list[Path] | None), word_of(int | None), word_of(bool)
    ('PATH', 'N', '')
    """
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return word_of(inner[0]) if inner else WORDS.get(annotation, "TEXT")


class Verbs(TyperGroup):
    """A group of verbs whose help names values by `WORDS`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of a name."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            _name_values(command.get_params(ctx), command.callback)
        return command

    def get_params(self, ctx: Any) -> Any:
        """The options of the group itself."""
        params = super().get_params(ctx)
        _name_values(params, self.callback)
        return params


def _name_values(params: Sequence[Any], callback: Callable[..., Any] | None) -> None:
    kinds = get_type_hints(inspect.unwrap(callback)) if callback is not None else {}
    for param in params:
        word = word_of(kinds.get(param.name, bool))  # --help is a switch
        if param.param_type_name == "option":
            param.metavar = word
        else:  # its own name stays
            param.display_type = lambda ctx, word=word: word
