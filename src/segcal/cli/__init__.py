"""The command line: a verb calls one function. Heavy imports wait until a verb needs them."""

from segcal.cli import compare, data, demo, lists, report, runs, study
from segcal.cli.app import app, main

__all__ = ["app", "compare", "data", "demo", "lists", "main", "report", "runs", "study"]
