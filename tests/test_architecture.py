"""The layers in docs/architecture.md are true: a package imports only from layers above its own."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segcal"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYER = {}
for number, names in re.findall(r"^ *(\d+) {2}([\w ]+)$", PAGE, re.M):
    LAYER |= dict.fromkeys(names.split(), int(number))
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py")


def package_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_packages(text):
    """The segcal packages that some source text imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "import by full name, so that this test can read it"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "segcal" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


def wrong_imports(package, text):
    """The imports in a package's text that break the rule."""
    for other in imported_packages(text):
        if other != package and LAYER[other] >= LAYER[package]:
            yield f"{package} (layer {LAYER[package]}) imports {other} (layer {LAYER[other]})"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_layers(path):
    assert not list(wrong_imports(package_of(path), path.read_text()))


def test_a_wrong_import_would_be_seen():
    assert list(wrong_imports("losses", "def f():\n    from segcal.training import fit"))
    assert list(wrong_imports("losses", "import segcal.metrics.overlap"))
    assert list(wrong_imports("metrics", "from segcal import losses"))
    assert not list(wrong_imports("training", "from segcal.losses import mbls"))
    assert not list(wrong_imports("data", "from segcal import folders"))


def test_the_page_has_every_package():
    assert set(LAYER) == {package_of(path) for path in MODULES}


def test_the_page_names_files_that_exist():
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE)
    assert len(named) > 30
    missing = [name for name in named if not (SOURCE / name).is_file()]
    assert not [name for name in missing if not (ROOT / name).is_file()]


def test_files_stay_small():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, f"{path.name} is too long: split it"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_segcal_loads_nothing():
    code = (
        "import sys, segcal; assert segcal.__version__; print([m for m in ('torch', 'numpy',"
        " 'scipy') if m in sys.modules])"
    )
    assert run(code).stdout.strip() == "[]"


def test_losses_need_torch_alone():
    """Every package but torch and its own dependencies is made to fail on import."""
    code = """
import sys
import torch
own = set(sys.modules)
class Wall:
    def find_spec(self, name, path=None, target=None):
        top = name.split('.')[0]
        if top not in ('segcal', 'torch', *sys.stdlib_module_names):
            raise ImportError('behind the wall: ' + name)
sys.meta_path.insert(0, Wall())
from segcal.losses import LOSSES, Criterion
import segcal.integrations.nnunet.margin  # so that trainers need no more
for key in LOSSES:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    Criterion(key)(x, torch.randint(0, 3, (2, 1, 8, 8))).backward()
print('ok')
"""
    result = run(code)
    assert result.stdout.strip() == "ok", result.stderr


def test_metrics_leave_torchmetrics_alone_until_asked():
    code = (
        "import sys, segcal.metrics as m; before = 'torchmetrics' in sys.modules;"
        " m.CalibrationScores(2); print(before)"
    )
    assert run(code).stdout.strip() == "False"


def test_unknown_attributes_are_errors():
    import segcal
    import segcal.metrics

    for module in (segcal, segcal.metrics):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018
    assert "losses" in dir(segcal)
