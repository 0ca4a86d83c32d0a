"""Settings: TOML, overrides and flags make one checked model; mistakes are named."""

import pytest

from segcal.config import RunSettings, run_settings
from segcal.types import UserError


def test_the_papers_protocol_is_the_default():
    settings = run_settings({"data": "cases/x"})
    training = settings.training
    assert (training.batch, training.epochs, training.lr, training.lr_drop) == (4, 100, 1e-3, 0.1)
    assert (settings.loss.name, settings.network.name) == ("ce", "unet")
    assert training.augment is False


def test_file_then_overrides_then_flags(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'data = "cases/a"\nseed = 3\n[loss]\nname = "mbls"\nmargin = 5.0\n[training]\nepochs ='
        " 7\nbatch = 2\n"
    )
    settings = run_settings(
        {"seed": 9, "fold": None},
        config=path,
        overrides=["training.epochs=8", "loss.margin=6", "seed=4"],
    )
    assert (settings.data, settings.seed, settings.fold) == ("cases/a", 9, 0)
    assert settings.loss.settings == {"margin": 6}
    assert (settings.training.epochs, settings.training.batch) == (8, 2)


def test_values_are_read_as_toml_or_text():
    chosen = run_settings(
        {"data": "x"}, overrides=["loss.a=1e-3", "loss.b=true", "loss.c=l2", "loss.d=[1, 2]"]
    ).loss.settings
    assert chosen == {"a": 1e-3, "b": True, "c": "l2", "d": [1, 2]}


def test_settings_survive_json():
    settings = run_settings({"data": "x"}, overrides=["loss.name=mbls", "loss.margin=5.0"])
    assert RunSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_what_decides_the_result():
    one, two, three = (
        run_settings({"data": "x"}, overrides=[f"machine.{text}"])
        for text in ("devices=1", "devices=2", "workers=2")
    )
    assert one.deciding == three.deciding != two.deciding  # a batch per device is a larger batch
    assert run_settings({"data": "x", "seed": 1}).deciding != one.deciding


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.epoch=3"], "unknown setting 'training.epoch'; did you mean 'training.epochs'?"),
        (["trainig.epochs=3"], "unknown setting 'trainig'; did you mean 'training'?"),
        (["epochs=3"], "unknown setting 'epochs'; did you mean 'training.epochs'?"),
        (["marign=3"], "unknown setting 'marign'; choose from data, fold"),
        (["trainig.epochs=3"], "unknown setting 'trainig'"),
        (
            ["training.epochs=0"],
            "setting training.epochs: input should be greater than or equal to 1; got 0",
        ),
        (
            ["training.epochs=many"],
            'setting training.epochs: input should be a valid integer.*got "many"',
        ),
        (["training.lr=-1"], "setting training.lr: input should be greater than 0; got -1"),
        (["epochs"], "--set takes key=value, such as training.epochs=10; got 'epochs'"),
        (["seed=1", "seed.x=2"], "seed.x cannot be set: seed is a value, not a section"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        run_settings({"data": "x"}, overrides=overrides)


def test_missing_data_and_bad_files(tmp_path):
    with pytest.raises(UserError, match="the setting data is missing"):
        run_settings({})
    (tmp_path / "bad.toml").write_text("= 3")
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(UserError, match="cannot read the settings in"):
            run_settings({}, config=tmp_path / name)
