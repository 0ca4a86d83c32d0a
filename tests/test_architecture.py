"""The house has floors: a room imports only from below, and its neighbours on the first floor leave
each other alone.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "segcal"
FLOORS = {
    6: {"cli", "__main__"},
    5: {"report", "demo"},
    4: {"figures"},
    3: {"study"},
    2: {"training", "predictors", "scoring", "fitting", "predicting", "compare"},
    1: {
        "losses",
        "metrics",
        "calibrators",
        "networks",
        "corruptions",
        "data",
        "config",
        "folders",
        "hardware",
        "provenance",
        "published",
    },
    0: {"types"},
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
ALLOWED_BETWEEN_NEIGHBOURS = {("data", "folders")}


def room_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(text):
    """The segcal rooms that some source text imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "import by full name, so that the floors can be read off"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "segcal" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


def ways_up(room, text):
    """The imports in a room's text that break the rule."""
    for other in imported_rooms(text):
        neighbours = FLOOR[other] == FLOOR[room] and other != room
        if FLOOR[other] > FLOOR[room] or (
            FLOOR[room] == 1 and neighbours and (room, other) not in ALLOWED_BETWEEN_NEIGHBOURS
        ):
            yield f"{room} (floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"


MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_way_up(path):
    assert not list(ways_up(room_of(path), path.read_text()))


def test_a_way_up_would_be_seen():
    assert list(ways_up("losses", "def f():\n    from segcal.training import fit"))
    assert list(ways_up("losses", "import segcal.metrics.overlap"))
    assert list(ways_up("metrics", "from segcal import losses"))
    assert not list(ways_up("training", "from segcal.losses import mbls"))
    assert not list(ways_up("data", "from segcal import folders"))


def test_files_stay_small():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 420, (
            f"{path.name} has grown too big: split the room"
        )


def test_the_picture_of_the_house_is_true():
    """Every room that exists stands in docs/architecture.md, on its floor, and no other does."""
    picture = (ROOT / "docs" / "architecture.md").read_text()
    drawn = {
        name: int(floor)
        for floor, line in re.findall(r"^L(\d) (.+)$", picture, re.M)
        for name in re.findall(r"`(\w+)`", line)
    }
    rooms = {room_of(path) for path in MODULES}
    assert drawn == {room: FLOOR[room] for room in rooms}


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
