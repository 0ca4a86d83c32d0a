"""The command line: a verb calls one function. Heavy imports wait until a verb needs them."""

from importlib import import_module

from segcal.cli.app import app, main

__all__ = ["app", "main"]

_VERBS = ("audit", "apply", "data", "lists", "runs", "study", "compare", "report", "nnunet")
for _module in (*_VERBS, "demo"):
    import_module(f"segcal.cli.{_module}")  # in the order in which the help lists the verbs
