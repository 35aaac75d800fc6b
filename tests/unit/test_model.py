import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from worlds import TINY_NETWORK

from fiss.config.presets import PUBLISHED_NETWORK
from fiss.errors import UserError
from fiss.models.classifier import PREFIX, Classifier, grow
from fiss.models.segmenter import ModelSpec, build, check_spec, check_weights, pad


@pytest.fixture(scope="module")
def model():
    return build(TINY_NETWORK, [4], 0).eval()


def probabilities(model, weights, sizes, images):
    model.load(weights, sizes)
    with torch.no_grad():
        return model(images).logits_BCHW.double().softmax(1)


def test_growing_from_background_leaves_old_probabilities_alone(model):
    images = torch.randn(2, 3, 32, 32)
    weights = model.weights()
    old = probabilities(model, weights, [4], images)
    grown = grow(grow(weights, 3, "background", 0), 2, "background", 0)
    new = probabilities(model, grown, [4, 3, 2], images)
    assert (new[:, 1:4] - old[:, 1:4]).abs().max() < 1e-6
    assert (new[:, 0] + new[:, 4:].sum(1) - old[:, 0]).abs().max() < 1e-6
    assert torch.allclose(new[:, 0], new[:, 7], atol=1e-7)  # the latest classes share evenly with background
    once = probabilities(model, grow(weights, 3, "background", 0), [4, 3], images)
    assert torch.allclose(once[:, 0], old[:, 0] / 4, atol=1e-6)
    assert float(grown[f"{PREFIX}.0.bias"][0]) == pytest.approx(
        float(weights[f"{PREFIX}.0.bias"][0]) - math.log(4) - math.log(3), abs=1e-6
    )


def test_growing_at_random_is_addressed_and_touches_nothing_else(model):
    model.load(build(TINY_NETWORK, [4], 0).weights(), [4])
    weights = model.weights()
    one, same, other = (grow(weights, 2, "random", seed) for seed in (1, 1, 2))
    assert torch.equal(one[f"{PREFIX}.1.weight"], same[f"{PREFIX}.1.weight"])
    assert not torch.equal(one[f"{PREFIX}.1.weight"], other[f"{PREFIX}.1.weight"])
    assert all(torch.equal(one[name], tensor) for name, tensor in weights.items())
    bound = 1 / math.sqrt(16)
    assert one[f"{PREFIX}.1.weight"].abs().max() <= bound
    assert one[f"{PREFIX}.1.weight"].std() == pytest.approx(bound / math.sqrt(3), rel=0.3)


def test_groups_stand_side_by_side():
    classifier = Classifier(2, [2, 1])
    for group, value in zip(classifier.groups, (1.0, 2.0), strict=True):
        torch.nn.init.constant_(group.weight, value)
        torch.nn.init.zeros_(group.bias)
    assert classifier(torch.ones(1, 2, 1, 1)).flatten().tolist() == [2.0, 2.0, 4.0]
    assert classifier.sizes == (2, 1)


def test_the_seed_draws_the_network_and_nothing_else():
    before = torch.get_rng_state()
    one, two, three = (build(TINY_NETWORK, [3], seed).weights() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], three[k]) for k in one)


def test_the_published_network():
    spec = replace(PUBLISHED_NETWORK, weights="none")
    model = build(spec, [16, 1], 0)
    blocks = [len(getattr(model.encoder, f"layer{i}")) for i in range(1, 5)]
    assert blocks == [3, 4, 23, 3]
    assert {block.conv2.dilation for block in model.encoder.layer4} == {(2, 2)}
    assert {block.conv2.stride for block in model.encoder.layer4} == {(1, 1)}
    dilations = [
        m.dilation[0] for m in model.decoder.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    assert dilations[:3] == [6, 12, 18]
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert model.divisor == 16
    assert model.features == 256
    output = model.eval()(torch.randn(1, 3, 64, 64))
    assert output.logits_BCHW.shape == (1, 17, 64, 64)
    assert output.small_BChw.shape == (1, 17, 4, 4)
    assert [tuple(s.shape[1:]) for s in output.stages] == [(256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 4, 4)]


def test_resnet_stages_are_taken_before_their_activation(model):
    model.load(build(TINY_NETWORK, [4], 0).weights(), [4])
    images = torch.randn(1, 3, 32, 32)
    output = model(images)
    features = model.encoder(images)
    assert model.stages_are == "before their last activation"
    assert len(output.stages) == 2  # depth 3: two residual stages
    for stage, after in zip(output.stages, features[2:], strict=True):
        assert (stage < 0).any()
        assert torch.allclose(stage.relu(), after)
    assert torch.equal(output.encoded_BDhw, features[-1])
    assert not any("layer3" in name or "layer4" in name for name in model.weights())


@pytest.mark.parametrize(
    ("architecture", "encoder", "options"),
    [
        ("unet", "mobilenet_v2", {}),
        ("fpn", "resnet18", {}),
        ("segformer", "mit_b0", {}),
        ("unet", "tu-resnet10t", {"encoder_depth": 4, "decoder_channels": (32, 16, 16, 8)}),
        ("deeplabv3", "resnet34", {"encoder_output_stride": 8}),
        ("pspnet", "resnet18", {"encoder_depth": 3}),
    ],
)
def test_other_networks(architecture, encoder, options):
    spec = ModelSpec(architecture, encoder, "none", options)
    check_spec(spec)
    model = build(spec, [3], 0).eval()
    images, labels = pad(torch.randn(1, 3, 50, 70), torch.zeros(1, 50, 70, dtype=torch.uint8), model.divisor)
    output = model(images)
    assert output.logits_BCHW.shape == (1, 3, *images.shape[-2:])
    assert labels.shape == images.shape[:1] + images.shape[2:]
    assert len(output.stages) >= 2
    again = build(spec, [3, 2], 1)
    again.load(grow(model.weights(), 2, "background", 0), [3, 2])
    assert again.classifier.sizes == (3, 2)


def test_padding_is_ignored():
    images, labels = pad(torch.ones(1, 3, 5, 7), torch.ones(1, 5, 7, dtype=torch.uint8), 4)
    assert images.shape == (1, 3, 8, 8)
    assert labels[0, :5, :7].eq(1).all()
    assert labels[0, 5:].eq(255).all()
    assert labels[0, :, 7:].eq(255).all()
    same = torch.ones(1, 3, 8, 8)
    assert pad(same, labels, 4)[0] is same


def test_encoder_weights_from_a_file(tmp_path):
    source = build(replace(TINY_NETWORK, encoder="resnet18"), [2], 9).encoder.state_dict()
    halved = {k: v.half() if "conv" in k else v for k, v in source.items() if "num_batches" not in k}
    path = tmp_path / "encoder.safetensors"
    save_file({**halved, "fc.weight": torch.zeros(3, 3)}, path)
    spec = replace(TINY_NETWORK, weights=str(path))
    check_spec(spec)
    loaded = build(spec, [2], 0).encoder.state_dict()
    assert torch.equal(loaded["conv1.weight"], source["conv1.weight"].half().float())
    assert loaded["conv1.weight"].dtype == torch.float32
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="does not fit this encoder"):
        build(spec, [2], 0)
    path.write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"not a readable \.safetensors"):
        build(spec, [2], 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architecture": "deeplab"}, "Unknown architecture 'deeplab'. Did you mean 'deeplabv3'"),
        ({"encoder": "resnet19"}, "Unknown encoder 'resnet19'. Did you mean 'resnet1"),
        ({"encoder": "tu-resnet10"}, "Unknown encoder 'tu-resnet10'. Did you mean 'tu-resnet10t'"),
        ({"weights": "imagnet"}, "Did you mean 'imagenet'"),
        ({"weights": "/no/file.safetensors"}, "no such file"),
        ({"architecture": "dpt"}, "Unknown architecture 'dpt'"),
        ({"options": {"output_stride": 16}}, "Did you mean 'encoder_output_stride'"),
    ],
)
def test_what_the_library_does_not_have(changes, says):
    check = check_weights if "weights" in changes else check_spec
    with pytest.raises(UserError, match=says):
        check(replace(TINY_NETWORK, **changes))


def test_weights_that_cannot_be_fetched(monkeypatch):
    import segmentation_models_pytorch as smp

    real = smp.create_model

    def offline(architecture, encoder, weights, **options):
        if weights:
            raise OSError("no network")
        return real(architecture, encoder, weights, **options)

    monkeypatch.setattr(smp, "create_model", offline)
    with pytest.raises(UserError, match=r"imagenet: not to be had for resnet18 \(OSError: no network\)"):
        build(replace(TINY_NETWORK, weights="imagenet"), [2], 0)
    with pytest.raises(UserError, match="cannot be built"):  # not the download's fault
        build(replace(TINY_NETWORK, weights="imagenet", options={"encoder_output_stride": 7}), [2], 0)


def test_timm_names_may_say_which_weights():
    check_spec(replace(TINY_NETWORK, encoder="tu-resnet50.a1_in1k"))


@pytest.mark.parametrize("options", [{"encoder_output_stride": 7}, {"decoder_channels": -5}])
def test_options_that_cannot_be_built(options):
    with pytest.raises(UserError, match="cannot be built"):
        build(replace(TINY_NETWORK, options=options), [2], 0)
