"""Our own files: the only room that knows their paths and formats."""

from segcal.folders.cases import (
    FORMAT,
    IGNORED,
    CaseSet,
    SliceFile,
    array_path,
    content_checksum,
    open_cases,
)
from segcal.folders.files import (
    changed,
    fingerprint,
    found,
    read_json,
    read_rows,
    read_run,
    refuse_packed,
    replacing,
    save_figure,
    save_weights,
    sha256,
    sweep,
    write_image,
    write_json,
    write_packed,
    write_rows,
)
from segcal.folders.whole import BusyError, StoppedError, alone, whole_or_not

__all__ = [
    "FORMAT",
    "IGNORED",
    "BusyError",
    "CaseSet",
    "SliceFile",
    "StoppedError",
    "alone",
    "array_path",
    "changed",
    "fingerprint",
]
__all__ += [
    "open_cases",
    "read_json",
    "read_rows",
    "read_run",
    "replacing",
    "save_figure",
    "save_weights",
    "sha256",
]
__all__ += ["content_checksum", "sweep", "whole_or_not", "write_image", "write_json"]
__all__ += ["found", "refuse_packed", "write_packed", "write_rows"]
