"""Finished runs read together: which are the same contender, which setting stands for it, and what
each scored.

Runs that differ only in seed, fold or a setting that the paper tunes are one *contender*. Of the
tuned settings the one with the best mean validation Dice in a fold stands for it there; its test
split has no say. Tables, ranks and figures are functions of `Results`."""

from segcal.compare.packing import pack
from segcal.compare.reading import COLUMNS, IGNORED_SETTINGS, read_results
from segcal.compare.records import MAIN_NETWORK, Contender, Results

__all__ = [
    "COLUMNS",
    "IGNORED_SETTINGS",
    "MAIN_NETWORK",
    "Contender",
    "Results",
    "pack",
    "read_results",
]
