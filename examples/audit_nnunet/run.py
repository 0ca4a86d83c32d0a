"""Real nnU-Net predictions made in minutes, and audited: the hippocampus, 2d, two folds.

    python examples/audit_nnunet/run.py Task04_Hippocampus --nnunet path/to/environment --out work

Run it with segcal's Python; `--nnunet` is the environment that has nnU-Net, as for
`examples/nnunet/compare.py`, whose steps these are with another trainer. What is done is skipped.
Five epochs of 50 steps give a poor network: look at what the audit says of it, not at its Dice.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nnunet"))
from compare import FOLDS, Work, prepare, train

TRAINER = "nnUNetTrainerShort"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", type=Path, help="Task04_Hippocampus of the Decathlon")
    parser.add_argument("--nnunet", type=Path, required=True, help="nnU-Net's environment")
    parser.add_argument("--out", type=Path, default=Path("nnunet-audit"))
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    settings = parser.parse_args()

    work = Work(settings.out.resolve(), settings.nnunet, settings.dry_run)
    prepare(work, settings.task)
    for fold in FOLDS:
        model = train(work, TRAINER, fold)
    work.segcal("audit", model, "--out", work.root / "audit")


if __name__ == "__main__":
    main()
