"""What the file of `segcal nnunet --install` holds when nnU-Net comes by in its search.

It comes by before it imports `primus`. Where that fails, an empty module takes its place, so that
the search goes on: to nnU-Net's variants, and to the folders that the variable names.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from segcal.integrations.nnunet.trainers.segcal_trainers import *  # noqa: F403

PRIMUS = "nnunetv2.training.nnUNetTrainer.primus.primus_trainers"

try:
    import_module(PRIMUS)
except (ImportError, RuntimeError):  # torchvision is missing, or does not load
    sys.modules[PRIMUS] = ModuleType(PRIMUS)
