"""What segcal's own JSON files must hold. Files of others are not trusted: each is checked here.

Only what is read is named; a file may hold more, and what it holds is used as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from segcal.folders.names import check_name, check_text


def named(check: Callable[[str, object], str], what: str) -> Any:
    """A check of names, as a part of an annotation."""
    return AfterValidator(lambda text: check(what, text))


CaseId = Annotated[str, named(check_name, "case")]
DatasetName = Annotated[str, named(check_name, "data set")]
ClassName = Annotated[str, named(check_text, "class")]
ChannelName = Annotated[str, named(check_text, "channel")]
FilePath = Annotated[str, Field(pattern=r"^[^\x00]+$")]  # no system has a name with a NUL
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Length = Annotated[FiniteFloat, Field(gt=0)]
Pair = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)]
Three = Field(min_length=3, max_length=3)


class Record(BaseModel):
    """A part of a file; numbers are numbers and texts are texts."""

    model_config = ConfigDict(strict=True, extra="allow")


class Arrays(Record):
    """The checksums of a case's arrays."""

    image: str
    label: str


class RecipeRecord(Record):
    """What preparation did, as far as it is needed later."""

    axis: Annotated[int, Field(ge=0, le=2)]
    keep_empty: bool = True


class CaseRecord(Record):
    """A case in `cases.json`."""

    patient: str
    sources: dict[str, dict[str, Any] | None]
    shape: Annotated[list[Size], Three]
    spacing: Annotated[list[Length], Three]
    intensity: list[Pair]
    voxels: list[Count]
    ignored_voxels: Count
    foreground_slices: list[Count]
    label_elsewhere: bool
    reoriented: bool
    sha256: Arrays


class CasesSettings(Record):
    """The settings of a preparation."""

    recipe: RecipeRecord


class CasesFile(Record):
    """What `cases.json` must hold to read its arrays."""

    name: DatasetName
    classes: Annotated[list[ClassName], Field(min_length=1, max_length=254)]
    channels: Annotated[list[ChannelName], Field(min_length=1)]
    splits: Annotated[list[dict[str, list[str]]], Field(min_length=1)]
    cases: dict[CaseId, dict[str, Any]]

    @model_validator(mode="after")
    def _splits_name_cases(self) -> CasesFile:
        for fold in self.splits:
            for id in (id for ids in fold.values() for id in ids):
                if id not in self.cases:
                    raise ValueError(f"a split names {id!a:.80}, which is no case")
        return self


class SplitRecord(Record):
    """A fold."""

    train: list[str]
    val: list[str]
    test: list[str]


class PreparedFile(CasesFile):
    """`cases.json` as preparation writes it."""

    regions: dict[ClassName, list[Size]]
    checksum: str
    settings: CasesSettings
    splits: Annotated[list[SplitRecord], Field(min_length=1)]  # type: ignore[assignment]
    orientation: Annotated[str, Field(pattern="^[LRAPIS]{3}$")] | None
    left_out: dict[str, str]
    left_out_sources: dict[str, dict[str, Any] | None]
    cases: dict[CaseId, CaseRecord]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _splits_name_cases(self) -> PreparedFile:
        for fold in self.splits:
            for id in (*fold.train, *fold.val, *fold.test):
                if id not in self.cases:
                    raise ValueError(f"a split names {id!a:.80}, which is no case")
        return self

    @model_validator(mode="after")
    def _counts_agree(self) -> PreparedFile:
        n_classes, n_channels = len(self.classes) + 1, len(self.channels)
        for id, case in self.cases.items():
            if len(case.voxels) != n_classes or len(case.intensity) != n_channels:
                raise ValueError(f"{id} has other classes or channels than the data set")
            if case.foreground_slices and max(case.foreground_slices) >= case.shape[0]:
                raise ValueError(f"{id} has foreground outside of its slices")
        for name, parts in self.regions.items():
            if any(part >= n_classes for part in parts):
                raise ValueError(f"the region {name} has a class that there is not")
        return self


class Named(Record):
    """A loss or network by its key."""

    name: str


class RunSettingsRecord(Record):
    """The settings of a run; `config` has the whole model."""

    data: FilePath
    fold: Count
    seed: Count
    loss: Named
    network: Named
    training: dict[str, Any] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)


class RunData(Record):
    """What a run records of its data."""

    name: DatasetName
    classes: Annotated[list[ClassName], Field(min_length=1, max_length=254)]
    channels: list[ChannelName] = Field(default_factory=list)
    regions: dict[ClassName, list[Size]]
    checksum: str
    orientation: Annotated[str, Field(pattern="^[LRAPIS]{3}$")] | None = None
    recipe: RecipeRecord | None = None
    splits: dict[str, Count] = Field(default_factory=dict)
    patients: dict[str, str] | None = None


class Kept(Record):
    """The validation scores of kept weights; NaN where there are none."""

    epoch: Count | None = None
    val_dice: float | None = None
    val_dice_se: float | None = None
    val_nll: float | None = None
    val_ece: float | None = None
    val_ece_perfect: float | None = None
    val_misplaced: float | None = None
    never_predicted: list[ClassName] = Field(default_factory=list)


class Member(Record):
    """A run of an ensemble."""

    folder: FilePath


class AuditFacts(Record):
    """What the `run.json` of an audit says of the audited files."""

    kind: str
    format: str
    folds: list[str]
    key: dict[str, Any]
    options: dict[str, FilePath | None]
    left_out: dict[str, str]
    warnings: list[str]


class RunFile(Record):
    """`run.json`."""

    id: str
    status: str
    settings: RunSettingsRecord
    data: RunData
    frame: Annotated[list[Size], Field(min_length=2, max_length=2)] | None = None
    versions: dict[str, Any] = Field(default_factory=dict)
    best: Kept | None = None
    last: Kept | None = None
    nll: Kept | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None
    kind: str = "run"
    members: Annotated[list[Member], Field(min_length=1)] | None = None
    weights: str | None = None
    average: str | None = None
    calibrator: str | None = None
    audit: AuditFacts | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RunFile:
        if self.kind == "audit" and self.audit is not None:
            return self
        if self.kind != "run" and None in (self.members, self.weights, self.calibrator):
            raise ValueError("it is no run, and lacks members, weights or calibrator")
        return self


def fault_of(model: type[BaseModel], content: Any) -> str | None:
    """What is wrong with the content of a file, in a few words; `None` if nothing is.

    >>> fault_of(Member, {"folder": 5})
    'folder: input should be a valid string'
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(f"{part!s:.40}" for part in first["loc"] if part != "[key]")
        text = first["msg"].removeprefix("Value error, ")
        text = f"{text[0].lower()}{text[1:]}"
        return f"{place}: {text}" if place else text
    return None
