"""What to use, as far as the tests go."""

from __future__ import annotations

from collections.abc import Sequence

from segcal.calibrators import CALIBRATORS
from segcal.metrics import METRICS
from segcal.report.findings import Findings, Overall
from segcal.report.words import change_text, listed

DICE, ECE = METRICS["dice"].label, METRICS["ece"].label


def advice(found: Findings, ranks: Overall) -> str:
    """What to use, as far as the tests go."""
    best = {m: found.unbeaten[m] for m in ("dice", "ece") if m in found.unbeaten}
    both = [key for key in found.names if all(key in keys for keys in best.values())]
    if not best:
        return "Nothing can be recommended: there are no scores to choose by."
    if not both:
        uses = {"dice": "where the outline counts most", "ece": "where probabilities are read"}
        firsts = {metric: found.leads[metric].first for metric in best}
        text = ", ".join(f"{found.names[key]} {uses[metric]}" for metric, key in firsts.items())
        labels = listed(METRICS[metric].label for metric in best)
        return f"{text}: no method is unbeaten in {labels}.{_then(found, list(firsts.values()))}"
    chosen = min(both, key=ranks.case_ranks.__getitem__)
    name = found.names[chosen]
    if found.n_patients < 2:
        text = f"One patient decides nothing; {name} did best over all metrics on this one."
    elif len(both) == 1:
        text = (
            f"{name}: no other is significantly better in {DICE} or {ECE}, and each of the others"
            " is beaten in one of them."
        )
    elif len(both) == len(found.names):
        text = f"No method is significantly better than another in {DICE} or {ECE}. "
        text += f"{name} has the best mean rank per case; the simplest method is as good a choice."
    else:
        names = listed((found.names[k] for k in both), "or")
        text = f"{names}: no other is significantly better than these in {DICE} or {ECE}. "
        text += f"Of them, {name} has the best mean rank per case."
    return text + _then(found, [chosen])


def _then(found: Findings, keys: Sequence[str]) -> str:
    """The calibrator that lowers the ECE most, where one does for sure and leaves the label map
    alone; and what harms.
    """
    text = ""
    for key in dict.fromkeys(keys):
        helps = [
            c
            for c in found.changes
            if c.contender == key and c.helps and CALIBRATORS[c.calibrator].keeps_labels
        ]
        if helps:
            best = min(helps, key=lambda change: change.after)
            text += (
                f" {best.label} lowers the {ECE} of {found.names[key]} from"
                f" {change_text(best.before, best.after)}."
            )
        harms = [c for c in found.changes if c.contender == key and c.harms]
        if harms:
            numbers = listed(f"{c.label} from {change_text(c.before, c.after)}" for c in harms)
            names = listed((c.label for c in harms), "or")
            text += f" Do not add {names} to {found.names[key]}: its {ECE} rises with {numbers}."
    tried = listed(dict.fromkeys(c.label for c in found.changes if c.contender in keys))
    return text or (f" {tried} did not change the {ECE} for sure." if tried else "")


def advice_alone(found: Findings) -> str:
    """The same where there is one method."""
    text = "With one method there is nothing to choose; run another on the same data and name both."
    return text + _then(found, list(found.names))
