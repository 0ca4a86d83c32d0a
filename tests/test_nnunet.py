"""What nnU-Net needs of segcal, without nnU-Net; `make test-nnunet` runs the rest."""

import subprocess
import sys

import pytest
import torch

from segcal.integrations import nnunet
from segcal.integrations.nnunet.margin import WithMargin
from segcal.losses import margin_penalty, region_margin_penalty
from segcal.types import UserError

TRAINERS = "training/nnUNetTrainer"


def run(*args, env=None):
    command = [sys.executable, "-m", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment's folders, with the part of nnU-Net that finds trainers."""
    package = tmp_path / "venv/lib/python3.11/site-packages/nnunetv2"
    (package / TRAINERS / "primus").mkdir(parents=True)
    (package / TRAINERS / "primus" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "paths.py").write_text("nnUNet_extTrainer = 1\n")
    return tmp_path / "venv"


def package_in(environment):
    return environment / "lib/python3.11/site-packages/nnunetv2"


# The folder
# ------------------------------------------------------------------------------


def test_standard_output_is_the_folder_alone():
    done = run("segcal", "nnunet")
    assert done.returncode == 0
    assert done.stdout == f"{nnunet.FOLDER}\n"
    assert (nnunet.FOLDER / "segcal_trainers.py").is_file()
    assert "nnU-Net is not in this environment" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("below", ["", "lib/python3.11/site-packages", "package itself"])
def test_install_and_uninstall_leave_nothing_behind(environment, below):
    package = package_in(environment)
    place = package if below == "package itself" else environment / below
    before = sorted(environment.rglob("*"))
    done = run("segcal", "nnunet", "--install", "--nnunet", place)
    assert done.returncode == 0, done.stderr
    assert sorted(environment.rglob("*")) == sorted([*before, package / TRAINERS / nnunet.FILE])
    again = run("segcal", "nnunet", "--install", "--nnunet", place)
    assert again.stdout == done.stdout == f"{package / TRAINERS / nnunet.FILE}\n"
    assert run("segcal", "nnunet", "--uninstall", "--nnunet", place).returncode == 0
    assert sorted(environment.rglob("*")) == before
    nothing = run("segcal", "nnunet", "--uninstall", "--nnunet", place)
    assert (nothing.returncode, nothing.stdout) == (0, "there was nothing to remove\n")


def test_an_environment_without_segcal_is_told_of(environment):
    """Its nnU-Net would find no trainer in the file."""
    done = run("segcal", "nnunet", "--install", "--nnunet", environment)
    assert done.returncode == 0
    assert "note: that environment has no segcal; install it there too" in done.stderr
    (package_in(environment).parent / "segcal-0.1.0.dist-info").mkdir()
    assert run("segcal", "nnunet", "--install", "--nnunet", environment).stderr == ""


def test_a_file_of_someone_else_is_left_alone(environment):
    theirs = package_in(environment) / TRAINERS / nnunet.FILE
    theirs.write_text("mine = 1\n")
    with pytest.raises(UserError, match="was not written by segcal; move it away"):
        nnunet.install(environment)
    with pytest.raises(UserError, match="was not written by segcal; remove it by hand"):
        nnunet.uninstall(environment)
    assert theirs.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--install"], "there is no nnunetv2 in this environment; name the environment"),
        (["--install", "--nnunet", "/nowhere"], "there is no nnunetv2 in /nowhere; name"),
        (["--install", "--uninstall"], "--install and --uninstall exclude each other"),
        (["--nnunet", "/nowhere"], "--nnunet goes with --install or --uninstall"),
    ],
)
def test_mistakes_are_one_sentence(options, message):
    done = run("segcal", "nnunet", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("typer", "segcal: its commands need typer; pip install typer"),
        ("monai", "segcal: monai is not in this environment; install segcal with all that it"),
    ],
)
def test_an_environment_with_the_trainers_alone(missing, message, tmp_path):
    """After `pip install --no-deps`."""
    code = f"import sys; sys.modules[{missing!r}] = None; from segcal.cli import main; main()"
    command = [sys.executable, "-c", code, "audit", tmp_path, "--out", tmp_path / "audit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_what_keeps_nnunet_from_the_folder_is_said(environment, monkeypatch):
    package = package_in(environment)
    monkeypatch.setattr(nnunet, "nnunet_folder", lambda: package)
    builds = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr(nnunet, "version", builds.__getitem__)
    (said,) = nnunet.notes()
    assert "was not built for this torch" in said
    assert "segcal nnunet --install" in said
    builds["torchvision"] = "0.28.0+cpu"
    assert nnunet.notes() == []
    builds.update(torch="2.13.0", torchvision="0.28.0")  # both for CUDA, from the same index
    assert nnunet.notes() == []
    (package / "paths.py").write_text("nnUNet_raw = 1\n")
    (said,) = nnunet.notes()
    assert "does not read nnUNet_extTrainer; use segcal nnunet --install" in said


def test_nnunet_goes_on_when_segcal_is_gone(environment):
    """Its search imports our file also when it looks for a trainer of its own."""
    file = nnunet.install(environment)
    gone = "import sys; sys.modules['segcal'] = None; import runpy; runpy.run_path(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", gone, file], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    # A module that nnU-Net lacks is not hidden: here nnU-Net itself is missing.
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert "No module named 'nnunetv2'" in done.stderr


# The loss
# ------------------------------------------------------------------------------


def own(logits, target):
    """In the place of nnU-Net's loss."""
    return logits.square().mean() + 0 * target.float().mean()


def test_the_margin_term_is_added_to_the_loss_that_is_there():
    torch.manual_seed(0)
    logits, target = 6 * torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 1, 8, 8)).short()
    value = WithMargin(own, margin=5.0)(logits, target)
    torch.testing.assert_close(
        value, own(logits, target) + 0.1 * margin_penalty(logits, margin=5.0)
    )


def test_an_ignore_label_is_left_out_of_the_margin_term():
    torch.manual_seed(0)
    logits, target = 6 * torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2, 1, 8, 8)).float()
    loss = WithMargin(own, margin=5.0, ignore_label=3)
    kept = logits.movedim(1, -1)[target[:, 0] != 3]  # (V, K)
    torch.testing.assert_close(loss.penalty(logits, target), margin_penalty(kept, margin=5.0))
    nothing = WithMargin(lambda *_: 0, margin=5.0, ignore_label=3)  # nnU-Net's value then
    assert nothing(logits, torch.full_like(target, 3)) == 0


@pytest.mark.parametrize("n_regions", [1, 2])
def test_regions_have_a_margin_each(n_regions):
    torch.manual_seed(0)
    logits = 9 * torch.randn(2, n_regions, 4, 8, 8)
    masks = torch.rand(2, n_regions + 1, 4, 8, 8) < 0.3  # the last: ignored
    plain = WithMargin(own, margin=5.0, regions=True)
    expected = region_margin_penalty(logits, margin=5.0)
    torch.testing.assert_close(plain.penalty(logits, masks[:, :-1]), expected)
    ignoring = WithMargin(own, margin=5.0, regions=True, ignore_label=3)
    expected = region_margin_penalty(logits, margin=5.0, ignored=masks[:, -1:])
    torch.testing.assert_close(ignoring.penalty(logits, masks), expected)


def test_the_loss_needs_torch_alone():
    code = """
import sys
import torch
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in ('segcal', 'torch', *sys.stdlib_module_names):
            raise ImportError('behind the wall: ' + name)
sys.meta_path.insert(0, Wall())
from segcal.integrations.nnunet.margin import WithMargin
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
