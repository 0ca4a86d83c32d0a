"""What the JSON files of results must hold: bins, what was fitted, studies, predictions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, RootModel, model_validator

from segcal.folders.names import check_name
from segcal.folders.schemas import CaseId, ClassName, Count, Length, Pair, Record, named

CellName = Annotated[str, named(check_name, "cell")]
Number = float | bool
OF_CLASS = ("own", "expected", "spread")  # sizes in the summary of a prediction
Sums = list[Number] | list[list[Number]]


class BinSums(Record):
    """Sums of one set of voxels, by kind and name."""

    top: dict[str, list[Number]] = Field(default_factory=dict)
    per_class: dict[str, list[list[Number]]] = Field(default_factory=dict)
    fine: dict[str, list[Number]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> BinSums:
        for sums in (self.top, self.fine):
            if len({len(values) for values in sums.values()}) > 1:
                raise ValueError("bins have sums of different lengths")
        return self


class BinsEntry(Record):
    """The bins of one condition."""

    weights: str
    split: str = ""
    corruption: str = ""
    calibrator: str = ""
    sets: dict[str, BinSums] = Field(default_factory=dict)
    bands: dict[str, Sums] = Field(default_factory=dict)
    mean_logits: list[list[Number]] = Field(default_factory=list)
    voxels: list[Number] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> BinsEntry:
        n_classes = {len(self.mean_logits), len(self.voxels), *map(len, self.mean_logits)}
        if len(n_classes) > 1 or (self.sets and not self.voxels):
            raise ValueError("bins have classes of different number")
        return self


class BinsFile(Record):
    """`bins.json`; entries of older versions are checked in today's format."""

    entries: list[dict[str, Any]]


class CellState(Record):
    """How far a cell is."""

    status: str
    error: str = ""


class CellsFile(Record):
    """`cells.json`."""

    cells: dict[CellName, CellState]


class PlanRecord(Record):
    """`plan.json`."""

    cells: dict[CellName, dict[str, Any]] = Field(default_factory=dict)
    choose: str = ""


class SelectionFile(Record):
    """`selection.json`."""

    choose: str = ""
    contenders: list[dict[str, Any]] = Field(default_factory=list)


class ClassScores(Record):
    """The scores of the validation patients of one class."""

    scores: Annotated[list[float], Field(min_length=1)]


class GuaranteeFile(Record):
    """A file of `guarantees/`."""

    level: Annotated[float, Field(gt=0, lt=1)]
    identity: dict[str, Any]
    classes: dict[str, ClassScores]


class Temperature(Record):
    """A fitted temperature, with its interval if there are enough patients."""

    temperature: Length
    interval: Pair | None = None


class ValNll(Record):
    """The NLL of validation before and after a calibrator."""

    before: float
    after: float


class FitFile(Record):
    """The facts of a fitted calibrator."""

    key: str = ""
    voxels: str = "all"
    over_all: Temperature | None = None
    val_nll: ValNll | None = None
    identity: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


class TsFile(FitFile, Temperature):
    """The facts of `ts`; near predicted foreground, with the temperature over all voxels."""

    @model_validator(mode="after")
    def _has_both(self) -> TsFile:
        if self.voxels == "near" and self.over_all is None:
            raise ValueError("it lacks over_all")
        return self


class TsParameters(Record):
    """The parameters of `ts`."""

    temperature: Length


class Ts2Parameters(Record):
    """The parameters of `ts2`."""

    near: Length
    far: Length
    radius: Annotated[FiniteFloat, Field(ge=0, le=99)]


class OutOfFoldRecord(Record):
    """What is fitted without a case's patient: a list with an entry for each problem."""

    ts: Annotated[list[TsParameters], Field(default_factory=list, min_length=1)]
    ts2: Annotated[list[Ts2Parameters], Field(default_factory=list, min_length=1)]


class OutOfFoldFile(RootModel[dict[CaseId, OutOfFoldRecord]]):
    """`out_of_fold.json`."""


class AuditFile(Record):
    """`audit.json`."""

    verdict: str
    sentences: list[str]
    n_cases: Count
    kind: str
    classes: list[ClassName]
    temperature: dict[str, float | None]
    calibrator: Literal["ts", "ts2"] | None
    scores: dict[str, dict[str, dict[str, float | None]]]
    warnings: list[str]
    left_out: dict[str, str]


class SummaryFile(Record):
    """The summary of a prediction; its sizes are in `unit`, such as ml or pixels."""

    unit: str = "ml"
    classes: dict[str, dict[str, Any]]
    mean_confidence: float | None
    unsure_share: float | None

    @model_validator(mode="after")
    def _has_sizes(self) -> SummaryFile:
        sizes: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        sizes.append((self.model_extra or {}, ("voxel", "image")))
        for values in self.classes.values():
            sizes.append((values | {f"own_{self.unit}": values.get(self.unit)}, OF_CLASS))
        for values, names in sizes:
            for name in names:
                if not isinstance(values.get(f"{name}_{self.unit}"), (int, float)):
                    raise ValueError(f"it lacks {name}_{self.unit}")
        return self
