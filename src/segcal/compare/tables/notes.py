"""The sentences under tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from segcal.choice import CHOICES
from segcal.compare import Contender, Results
from segcal.compare.metric_sets import PERFECT
from segcal.compare.ranking import LEVEL, N_SAMPLES
from segcal.compare.tables.entries import EMPTY, MISSED, NOT_SCORED, NOWHERE, WITHOUT, Column
from segcal.compare.tables.records import Request, Row
from segcal.metrics import METRICS
from segcal.published import published_datasets

MOST_NAMES = 4  # failed cells that a note names one by one
MEANINGS = {
    MISSED: "Missed: the number of cases in which an object was missed or invented, so that it has"
    " no distance. The mean is over the other cases.",
    EMPTY: "Empty: the number of cases in which the object is not there and rightly left out, while"
    " another invents it. The mean is over the other cases.",
    NOT_SCORED: "Not scored: some runs lack these scores; segcal calibrate and segcal evaluate add"
    " them.",
    NOWHERE: "No near voxels: it predicts no foreground.",
    WITHOUT: "Without: the number of cases in which others have a value, but not {}. The mean is"
    " over the other cases, so it is not of the same cases as theirs.",
}
REFERENCE = (
    "The ECE{} of voxels whose reference label is foreground. The answer chooses these voxels:"
    " a perfectly calibrated network does not get 0{}, and probability misplaced far from the organ"
    " is invisible."
)
BESIDE = 'A value below "if perfect" means that probabilities are too unsure, above it too sure.'
LOWEST = "Marks are as in the paper: the lowest is best, whatever it would be if perfect."
PIXELS = (
    "Distances are in pixels of the original, not in mm: pictures do not say how large a pixel is."
)


def notes_on(
    request: Request, contenders: Sequence[Contender], rows: Sequence[Row], columns: list[Column]
) -> Iterator[str]:
    """The sentences under a table of means: over what, the interval, the marks, what is missing."""
    results, dataset = request.results, request.dataset
    entries = [entry for row in rows for entry in row.cells]
    words = " ".join(entry.note for entry in entries)
    scores = results.rows()
    cases = scores.loc[scores["dataset"] == dataset, "case"].unique()
    yield from _basis(results, contenders, list(cases))
    if len(contenders) < 2:
        yield f"{contenders[0].label} is the only contender: no marks and no ranks."
    elif any(entry.best for entry in entries):
        yield _marks(words, any(entry.second for entry in entries))
    distances = any(METRICS[column.metric].of == "surfaces" for column in columns)
    if distances and results.data(dataset).get("distances") == "pixels":
        yield PIXELS
    yield from _fewer(len(cases), rows, columns)
    paper = {c.metric for c in columns if c.metric in PERFECT and c.voxels != "near"}
    if paper:
        has_perfect = any(c.metric in PERFECT.values() for c in columns)
        beside = " but the value if perfect" if has_perfect else ""
        yield REFERENCE.format(" and CECE are" if "cece" in paper else " is", beside)
        if has_perfect:
            yield BESIDE
            if results.metrics.key == "paper":
                yield LOWEST
    if any(METRICS[c.metric].per_foreground and not c.voxels for c in columns):
        yield from _empty(request, contenders)
    for word, sentence in MEANINGS.items():
        having = [row.label for row in rows if any(word in entry.note for entry in row.cells)]
        if having:
            yield sentence.format(", ".join(dict.fromkeys(having)))
    if request.published and dataset not in published_datasets():
        known = ", ".join(published_datasets())
        yield f"The paper has no values for {dataset}; it has for {known}."
    elif request.published and all(entry.published is None for entry in entries):
        yield "The paper has no values for this table."
    elif request.published:
        voxels = "; its surface distances are in voxels" if distances else ""
        yield f"In brackets the value that the paper has{voxels}."


def _basis(results: Results, contenders: Sequence[Contender], cases: list[str]) -> Iterator[str]:
    n_cases = len(cases)
    n_patients = results.patients(contenders[0].dataset).reindex(cases).nunique()
    if n_cases == 1:
        yield "One test case only: no interval and no test."
    elif n_patients < 2:
        yield f"{n_cases} test cases of one patient only: no interval and no test."
    else:
        interval = f"half of the {LEVEL:.0%} bootstrap interval over {n_patients} patients"
        yield f"Mean over {n_cases} test cases ± {interval} ({N_SAMPLES:,} samples)."
    infos = {c.label: [results.runs[run] for run in c.runs] for c in contenders}
    if any(info["data"].get("patients") is None for group in infos.values() for info in group):
        yield "It is not known which cases are of one patient; each counts as a patient of its own."
    seeds = {label: len({i["settings"]["seed"] for i in group}) for label, group in infos.items()}
    numbers = set(seeds.values())
    if numbers != {1}:
        each = "; ".join(f"{label} ({n})" for label, n in seeds.items())
        yield f"Per case the mean over seeds: {each if len(numbers) > 1 else max(numbers)}."


def _empty(request: Request, contenders: Sequence[Contender]) -> Iterator[str]:
    """Cases without foreground have no score per foreground voxel."""
    condition = {"voxels": "empty", "calibrator": request.calibrator}
    values = request.results.per_case(request.dataset, "misplaced", "all", **condition)
    if values.notna().any(axis=None):
        means = values.mean()
        each = [f"{c.label} {means[c.key]:.3g}" for c in contenders if c.key in means]
        label, n = METRICS["misplaced"].label, len(values.dropna(how="all"))
        apart = f"{n} cases have" if n > 1 else "1 case has"
        yield (
            f"{apart} no foreground and no score per foreground voxel. {label} there, per 1,000"
            f" voxels: {', '.join(each)}."
        )


def _marks(words: str, has_second: bool) -> str:
    """What marks mean, and how cases without a value count in them."""
    rules = []
    lacking = ["a missed case"] * (MISSED in words) + ["a case without a value"] * (
        WITHOUT in words
    )
    if lacking:
        worst = "value" if WITHOUT in words else "distance"
        rules.append(f"{' or '.join(lacking)} as the worst {worst} anyone had")
    if EMPTY in words:
        rules.append("an empty case as perfect")
    mean = "" if rules else " mean"
    line = f"Bold is the best{mean}, underlined the second"
    if not has_second:
        line = f"Bold is the better{mean}"
    return f"{line}, counting {' and '.join(rules)}." if rules else f"{line}."


def _fewer(n_cases: int, rows: Sequence[Row], columns: Sequence[Column]) -> Iterator[str]:
    """Columns without any value in some cases, such as of a class that is not there."""
    over = defaultdict(list)
    for i, column in enumerate(columns):
        entries = [row.cells[i] for row in rows if row.cells[i].note != NOT_SCORED]
        counts = [entry.of for entry in entries]
        if len(entries) == len(rows) and all(entry.value is None for entry in entries):
            yield f"{column.header} has no value in any case."
        elif counts and min(counts) < n_cases:  # a block may have fewer than another
            bounds = dict.fromkeys((min(counts), max(counts)))
            over[" to ".join(map(str, bounds))].append(column.header)
    for n, headers in over.items():
        which = ", ".join(headers)
        yield f"Over {n} of {n_cases} cases, as nobody has a value in the others: {which}."


def choice_note(results: Results, keys: Iterable[str] = ()) -> list[str]:
    """The rules by which validation chose settings, and the epochs of a table's contenders.

    None if there was no such choice. `keys` are those of the table's rows."""
    chosen = []
    if any(len(c.tried) > 1 for c in results.contenders):
        chosen.append(f"In each fold validation chose the setting with {CHOICES[results.choose]}")
    by_nll = {c.key for c in results.contenders if c.weights == "nll"}
    if by_nll == {c.key for c in results.contenders}:
        chosen.append(f"In each run validation chose the epoch with {CHOICES['nll']}")
    elif by_nll & set(keys):
        chosen.append(f"Lowest NLL: validation chose the epoch with {CHOICES['nll']}")
    return [f"{rule}; test cases take no part in the choice." for rule in chosen]


def failed_note(failed: Iterable[str]) -> list[str]:
    """A sentence on the cells of a study that failed; none if none did.

    >>> failed_note(["ls-s0", "ls-s1"])
    ['Left out because they failed in the study: ls-s0, ls-s1.']
    >>> failed_note([f"ls-s{i}" for i in range(9)])
    ['Left out because they failed in the study: ls-s0, ls-s1, ls-s2, ls-s3 and 5 more.']
    """
    names = list(failed)
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    which = "it" if len(names) == 1 else "they"
    listed = ", ".join(names[:MOST_NAMES]) + more
    return [f"Left out because {which} failed in the study: {listed}."]
