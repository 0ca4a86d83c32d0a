"""Any name is a module that does nothing."""

from torch import nn


def __getattr__(name):
    return type(name, (nn.Module,), {})
