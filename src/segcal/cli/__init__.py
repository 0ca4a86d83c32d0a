"""The command line: a verb calls one function. Heavy imports wait until a verb needs them."""

import sys
from importlib import import_module

try:
    import typer  # noqa: F401
except ModuleNotFoundError:  # after pip install --no-deps, as for nnU-Net's trainers
    print("segcal: its commands need typer; pip install typer", file=sys.stderr)
    raise SystemExit(2) from None

from segcal.cli.app import app, main

__all__ = ["app", "main"]

_VERBS = ("audit", "apply", "data", "lists", "runs", "study", "compare", "report", "nnunet")
for _module in (*_VERBS, "demo"):
    import_module(f"segcal.cli.{_module}")  # in the order in which the help lists the verbs
