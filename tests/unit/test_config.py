import tomllib
from dataclasses import fields, is_dataclass, replace

import pytest

from fiss.config import presets
from fiss.config.config import Config, from_dict, meanings, parse_settings, read_toml, to_toml, with_settings
from fiss.config.presets import PRESETS, find
from fiss.errors import UserError
from fiss.runs.folder import config_digest


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_toml(name):
    config = find(name)
    assert from_dict(tomllib.loads(to_toml(config))) == config


def test_odd_strings_survive_toml(tiny):
    odd = 'a "quoted" \\ path\nwith é, \x7f and 漢'
    config = with_settings(tiny, {"data.root": odd})
    assert from_dict(tomllib.loads(to_toml(config))).data.root == odd


def test_every_key_says_what_it_means():
    for config in (PRESETS[name]() for name in PRESETS):
        for section in (config, *(getattr(config, f.name) for f in fields(config))):
            if is_dataclass(section):
                for field in fields(section):
                    if not is_dataclass(getattr(section, field.name)):
                        assert meanings(type(section)).get(field.name), f"{type(section).__name__}.{field.name}"


def test_settings():
    config = with_settings(
        find("voc-4-4"),
        parse_settings(
            [
                "training.batch=8",
                "tasks.split=15-1",
                "model.encoder = 'resnet50'",
                "world.own_labels=true",
                "augment.scale=[0.25, 1]",
                "tasks.order=dog,cat",
                "model.options.decoder_aspp_dropout=0.1",
                "model.options.decoder_channels=64",
                "method.start=background",
                "evaluation.views=full",
            ]
        ),
    )
    assert config.training.batch == 8
    assert config.tasks.split == "15-1"
    assert config.model.encoder == "resnet50"
    assert config.world.own_labels is True
    assert config.augment.scale == (0.25, 1.0)
    assert config.tasks.order == ("dog", "cat")
    assert config.model.options["decoder_channels"] == 64
    assert config.model.options["decoder_atrous_rates"] == (6, 12, 18)
    assert config.method.start == "background"
    assert config.evaluation.views == ("full",)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trainning.batch=8", "Unknown key 'trainning.batch'. Did you mean 'training.batch'"),
        ("training.bach=8", "Did you mean 'training.batch'"),
        ("sed=3", "Did you mean 'seed'"),
        ("batch=8", "Did you mean 'training.batch'"),
        ("training=8", "Unknown key 'training'"),
        ("seed.x=8", "Unknown key"),
        ("training.batch=many", "training.batch = \"many\": expected a whole number"),
        ("training.batch=8.5", "expected a whole number"),
        ("training.batch=true", "expected a whole number"),
        ("training.first_rate=fast", "expected a number"),
        ("training.first_rate=nan", "expected a number"),
        ("training.drop_last=1", "expected true or false"),
        ("augment.scale=[1]", "expected a list of 2: a number"),
        ("augment.scale=[1, true]", "expected a number"),
        ("federation.weighting=unifrom", "Did you mean 'uniform'"),
        ("evaluation.views=[1]", "expected one of published, full"),
        ("model.options.decoder_channels={a=1}", "expected another type"),
        ("world.per_round=11", "more than the 10 clients"),
        ("world.sample_ratio=1.2", "at most 1"),
        ("data.name=vok", "Did you mean 'voc'"),
        ("keep=0", "keep = 0"),
    ],
)  # fmt: skip
def test_bad_settings(setting, says):
    with pytest.raises(UserError) as caught:
        with_settings(find("voc-4-4"), parse_settings([setting]))
    assert says in str(caught.value)


def test_options_can_be_replaced_as_a_whole():
    config = with_settings(
        find("shapes"), parse_settings(["model.architecture=unet", "model.options={encoder_depth=4}"])
    )
    assert config.model.options == {"encoder_depth": 4}


def test_bad_files(tmp_path):
    path = tmp_path / "x.toml"
    for text, says in (
        ("seed = ", "not valid TOML"),
        ("sed = 1", "Did you mean 'seed'"),
        ("method = 'finetune'", "must be a section"),
        ("[method]\nname = 'fintune'", "Did you mean 'finetune'"),
        ("[method]\nname = 'finetune'\nlambda = 3", "Unknown key 'method.lambda'"),
        ("[method]\nname = 'nowhere:Method'", "cannot be imported"),
        ("[method]\nname = '../x:Method'", "cannot be imported"),
        ("[method]\nname = 'fiss.config.config:Config'", "not a subclass"),
        ("joint = true\nbase = 'x'", "exclude each other"),
        ("data = 3", "expected a section of keys"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=says):
            read_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="unreadable"):
        read_toml(path)
    with pytest.raises(UserError, match="unreadable"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(UserError, match="expected key=value"):
        parse_settings(["seed"])


def test_the_published_numbers():
    for name, ratios in (("voc-15-1", (0.5, 0.8, 0.4)), ("voc-4-4", (0.5, 0.6, 0.4)), ("voc-8-2", (0.5, 0.6, 0.4))):
        config = find(name)
        world = config.world
        assert (world.class_ratio, world.sample_ratio, world.single_ratio) == ratios
        assert (world.clients, world.joiners, world.per_round, world.rounds, config.seed) == (10, 4, 4, 5, 2023)
        training = config.training
        assert (training.epochs, training.batch, training.first_rate, training.later_rate) == (6, 24, 0.01, 0.001)
        assert (training.momentum, training.weight_decay, training.drop_last) == (0.9, 1e-4, True)
        assert (config.federation.weighting, training.batch_statistics) == ("uniform", "averaged")
        assert config.augment.crop == config.evaluation.size == 512
    ade = find("ade-100-10")
    assert (ade.world.class_ratio, ade.world.sample_ratio, ade.training.epochs) == (0.7, 1.0, 12)


def test_coefficients_of_ade20k_belong_to_the_data_set():
    from fiss.config.presets import method_for

    for name in ("fbl", "fbl-reference", "plop"):
        assert (method_for("ade20k", name).pod_features, method_for("ade20k", name).pod_logits) == (
            0.001,
            0.00001,
        )
        assert method_for("voc", name).pod_features == 0.01
    assert method_for("ade20k", "fbl").proportion_step == 0.05
    assert method_for("ade20k", "mib").distillation == 1
    assert method_for("ade20k", "rcil").distillation == 5
    assert method_for("ade20k", "lwf") == method_for("voc", "lwf")


def test_the_default_config_is_complete():
    assert from_dict({}) == Config()


def test_runs_of_the_first_version_can_be_resumed():
    """Digests as the first version wrote them: keys that came later count only where they differ from their default."""
    assert config_digest(presets.shapes()).startswith("d34dd1f641bef96d")
    assert config_digest(presets.voc_4_4()).startswith("cc5dd72b86fffa20")
    for changes in ({"compile": True}, {"later_epochs": 1}, {"batch": 9}):
        other = replace(presets.shapes(), training=replace(presets.shapes().training, **changes))
        assert config_digest(other) != config_digest(presets.shapes())
    other = replace(presets.shapes(), training=replace(presets.shapes().training, workers=3, cache=0.5))
    assert config_digest(other) == config_digest(presets.shapes())
