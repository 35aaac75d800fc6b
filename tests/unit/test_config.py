import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from fiss import methods
from fiss.config import presets
from fiss.config.config import (
    Config,
    from_dict,
    method_for,
    parse_settings,
    read_toml,
    to_toml,
    with_settings,
)
from fiss.config.presets import PRESETS, preset
from fiss.config.section import meanings
from fiss.errors import UserError
from fiss.methods.fbl import FBL
from fiss.simulation import sweep


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_toml(name):
    config = preset(name)
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
        preset("voc-4-4"),
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
        (f"training.first_rate=1{400 * '0'}", "expected a number"),
        ("training.drop_last=1", "expected true or false"),
        ("augment.scale=[1]", "expected a list of 2: a number"),
        ("augment.scale=[1, true]", "expected a number"),
        ("federation.weighting=unifrom", "Did you mean 'uniform'"),
        ("evaluation.views=[1]", "expected one of published, full"),
        ("model.options.decoder_channels={a=1}", "decoder_channels = {\"a\": 1}: expected a string or a whole number"),
        ("world.per_round=11", "more than the 10 clients"),
        ("world.sample_ratio=1.2", "at most 1"),
        ("data.name=vok", "Did you mean 'voc'"),
        ("keep=0", "keep = 0"),
    ],
)  # fmt: skip
def test_bad_settings(setting, says):
    with pytest.raises(UserError) as caught:
        with_settings(preset("voc-4-4"), parse_settings([setting]))
    assert says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    text = """
    sed = 1
    keep = "2"
    [data]
    name = "vok"
    [world]
    per_round = 11
    clients = 10
    [method]
    name = "fbl"
    pod_logits = "little"
    weight = 1
    [training]
    batch = 2.0
    drop_last = 1
    [augment]
    scale = [1]
    [model.options]
    one = {}
    two = [1, 2.5]
    """
    with pytest.raises(UserError) as caught:
        from_dict(tomllib.loads(text))
    lines = str(caught.value).splitlines()
    for says in (
        "Unknown key 'sed'. Did you mean 'seed'?",
        'keep = "2": expected a whole number.',
        "Unknown data set 'vok'. Did you mean 'voc'?",
        "world.per_round = 11 is more than the 10 clients",
        'method.pod_logits = "little": expected a number.',
        "Unknown key 'method.weight'.",
        "training.batch = 2.0: expected a whole number.",
        "training.drop_last = 1: expected true or false.",
        "augment.scale = [1]: expected a list of 2: a number.",
        "model.options.one = {}: expected",
        "model.options.two = [1, 2.5]: expected",
    ):
        assert [line for line in lines if line.startswith(says)], says
    assert len(lines) == 11
    with pytest.raises(UserError) as caught:
        with_settings(preset("shapes"), {"sed": 1, "training.batch": "x", "training.epochs": 0, "method.pods": 1})
    assert [line.split("'")[1] if "'" in line else line for line in str(caught.value).splitlines()] == [
        "sed",
        'training.batch = "x": expected a whole number.',
    ]  # the method's own are looked at when it is known which method that is


def test_a_config_with_changes():
    config = preset("shapes").replace(method=FBL(pod_logits=0), training={"epochs": 1}, seed=3)
    assert (config.method, config.training.epochs, config.training.batch, config.seed) == (FBL(pod_logits=0), 1, 8, 3)
    assert config == preset("shapes").replace(seed=3).replace(
        method={"name": "fbl", "pod_logits": 0}, training=replace(config.training, epochs=1)
    )
    assert config.replace(method="fbl") == config
    assert config.replace(method="mib").method == methods.find("mib")
    assert config.replace(method={"relation_weight": 2}).method == FBL(pod_logits=0, relation_weight=2.0)
    for changes, says in (
        ({"trainning": {}}, "Did you mean 'training'"),
        ({"training": {"epoch": 1}}, "Did you mean 'training.epochs'"),
        ({"training": preset("shapes").data}, "expected a section of keys"),
        ({"method": "fbi"}, "Did you mean 'fbl'"),
        ({"method": None}, "expected a section of keys"),
        ({"seed": True}, "expected a whole number"),
        ({"tasks": {"order": "dog"}}, "expected a list of a string"),
        ({"self": 1}, "Unknown key 'self'"),
    ):
        with pytest.raises(UserError, match=says):
            config.replace(**changes)


def test_settings_may_be_python_values():
    values = {
        "world.rounds": 2,
        "augment.scale": (0.5, 1),
        "tasks.order": ["a", "b"],
        "model.options": {"encoder_depth": 4},
        "training.batch": "6",
        "data.root": "8",
    }
    config = with_settings(preset("shapes"), values)
    assert config == presets.choose("shapes", settings=values)
    assert (config.world.rounds, config.augment.scale, config.tasks.order) == (2, (0.5, 1.0), ("a", "b"))
    assert (config.model.options, config.training.batch, config.data.root) == ({"encoder_depth": 4}, 6, "8")
    with pytest.raises(UserError, match=r"data\.root = 8: expected a string"):
        with_settings(config, {"data.root": 8})
    with pytest.raises(UserError, match="Unknown key 'training'"):
        with_settings(config, {"training": {"batch": 8}})


@pytest.mark.parametrize("preset", ["ade-100-10", "shapes"])
@pytest.mark.parametrize("name", ["fbl", "fbl-reference", "mib", "finetune"])
def test_a_method_is_the_same_however_it_is_named(preset, name):
    config = presets.choose(preset, name)
    assert presets.exact_label(config) == name
    assert presets.choose(preset, settings=[f"method.name={name}"]) == config
    assert presets.preset(preset).replace(method=name) == config
    (*_, job) = sweep.plan(presets.preset(preset), [name], [config.seed], Path("runs"))
    assert job.config.method == config.method


def test_fields_belong_to_the_method_that_is_set_with_them():
    for settings in (["method.name=fbl", "method.relation_weight=3"], ["method.relation_weight=3", "method.name=fbl"]):
        assert presets.choose("shapes", settings=settings).method == FBL(relation_weight=3.0)
    assert presets.choose("voc-4-4", "mib", settings=["data.name=ade20k"]).method.distillation == 1.0
    with pytest.raises(UserError, match=r"Unknown key 'method\.pod_logits'"):
        presets.choose("shapes", "fbl", settings=["method.name=mib", "method.pod_logits=1"])


def test_the_method_that_a_file_names_keeps_its_fields(tmp_path):
    """One rule for `fiss run FILE --method M`, --set method.name=M and a sweep."""
    own = preset("ade-100-10").replace(method=replace(methods.find("fbl-reference"), relation_weight=7.0))
    path = tmp_path / "own.toml"
    path.write_text(to_toml(own))
    for name in ("fbl", "fbl-reference", "mib"):
        chosen = presets.choose(str(path), name)
        (*_, job) = sweep.plan(read_toml(path), [name], [own.seed], tmp_path)
        assert presets.choose(str(path), settings=[f"method.name={name}"]) == chosen
        assert job.config.method == chosen.method
        assert chosen.method == (own.method if name == "fbl" else method_for("ade20k", name))


def test_a_method_of_ones_own_knows_nothing_of_how_it_is_checked(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from fiss.methods.finetune import Finetune\n\n"
        "@dataclass(frozen=True)\n"
        "class Theirs(Finetune):\n"
        "    name = 'theirs'\n"
        "    weight: float = 1.0\n"
        "    parts: tuple[str, ...] = ()\n"
        "    most: int | str = 'all'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = presets.choose("shapes", "theirs:Theirs", settings=["method.weight=3", "method.parts=a,b"])
    assert (config.method.weight, config.method.parts) == (3.0, ("a", "b"))
    assert from_dict(tomllib.loads(to_toml(config))) == config
    with pytest.raises(UserError, match=r"method\.most = 1\.5: expected a whole number or a string"):
        config.replace(method={"most": 1.5})


def test_options_can_be_replaced_as_a_whole():
    config = with_settings(
        preset("shapes"), parse_settings(["model.architecture=unet", "model.options={encoder_depth=4}"])
    )
    assert config.model.options == {"encoder_depth": 4}


def test_bad_files(tmp_path):
    path = tmp_path / "x.toml"
    for text, says in (
        ("seed = ", "not valid TOML"),
        ("sed = 1", "Did you mean 'seed'"),
        ("method = 3", "method = 3: expected a section"),
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
        config = preset(name)
        world = config.world
        assert (world.class_ratio, world.sample_ratio, world.single_ratio) == ratios
        assert (world.clients, world.joiners, world.per_round, world.rounds, config.seed) == (10, 4, 4, 5, 2023)
        training = config.training
        assert (training.epochs, training.batch, training.first_rate, training.later_rate) == (6, 24, 0.01, 0.001)
        assert (training.momentum, training.weight_decay, training.drop_last) == (0.9, 1e-4, True)
        assert (config.federation.weighting, training.batch_statistics) == ("uniform", "averaged")
        assert config.augment.crop == config.evaluation.size == 512
    ade = preset("ade-100-10")
    assert (ade.world.class_ratio, ade.world.sample_ratio, ade.training.epochs) == (0.7, 1.0, 12)


def test_coefficients_of_ade20k_belong_to_the_data_set():
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
