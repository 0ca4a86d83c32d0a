"""Finished runs read together: contenders, the setting that each is compared with, and scores.

Runs that differ only in seed, fold or a setting that the paper tunes are one *contender*. In each
fold it is compared with the setting that validation chooses; test cases do not take part in the
choice. Tables, ranks and figures are functions of `Results`."""

from segcal.compare.contenders import Contender
from segcal.compare.names import MAIN_NETWORK, Settings, network_label, setting_text
from segcal.compare.packing import pack
from segcal.compare.reading import read_results
from segcal.compare.records import Results

__all__ = ["MAIN_NETWORK", "Contender", "Results", "Settings", "network_label", "pack"]
__all__ += ["read_results", "setting_text"]
