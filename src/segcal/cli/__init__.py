"""The command line: each verb a few lines that call one function. Heavy imports wait until a verb
needs them.
"""

from segcal.cli import compare, data, demo, figures, report, runs, study
from segcal.cli.app import app, main

__all__ = ["app", "compare", "data", "demo", "figures", "main", "report", "runs", "study"]
