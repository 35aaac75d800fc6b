"""Encoders without a decoder, vision transformers among them, and their weights from files."""

import pytest
import torch
from safetensors.torch import save_file
from worlds import TINY_TRANSFORMER

from fiss.errors import UserError
from fiss.methods.analytic import Analytic
from fiss.models.encoders import Transformer, load_encoder
from fiss.models.segmenter import ModelSpec, build, check_spec, pad
from fiss.statistics.head import head_of

REGISTERS = {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-5}


@pytest.mark.parametrize(
    ("encoder", "options", "size", "maps"),
    [
        ("resnet18", {"encoder_depth": 3}, (4, 5), [(64, 8, 10), (128, 4, 5)]),
        ("tu-resnet10t", {}, (1, 2), [(64, 16, 32), (64, 8, 16), (128, 4, 8), (256, 2, 4), (512, 1, 2)]),
        ("mit_b0", {}, (1, 2), [(0, 16, 32), (32, 8, 16), (64, 4, 8), (160, 2, 4), (256, 1, 2)]),
        ("tu-test_vit", {}, (2, 3), [(64, 2, 3)] * 4),
        ("tu-test_vit", {"encoder_output_indices": (1, 5)}, (2, 3), [(64, 2, 3)] * 2),
    ],
)
def test_networks_without_a_decoder(encoder, options, size, maps):
    spec = ModelSpec("none", encoder, "none", options)
    check_spec(spec)
    model = build(spec, [3, 2], 0).eval()
    images, _ = pad(torch.randn(2, 3, 29, 40), torch.zeros(2, 29, 40, dtype=torch.uint8), model.divisor)
    Analytic().adapt_network(model)
    with torch.no_grad():
        output = model(images)
        features = head_of(model).map(output.decoded_BDhw, output.encoded_BDhw, output.stages, images.shape[2:])
    assert output.logits_BCHW.shape == (2, 5, *images.shape[2:])
    assert [tuple(stage.shape[1:]) for stage in output.stages] == maps
    assert output.decoded_BDhw is output.encoded_BDhw
    assert features.shape == (2, sum(channels for channels, *_ in maps), *size)
    widths = {name: width for name, width in model.map_channels.items() if name != "encoder"}
    count = len(maps)
    assert widths == {f"stage{n}": maps[n - 1][0] for n in range(1, count + 1)} | {
        f"stage{-n}": maps[-n][0] for n in range(1, count + 1)
    }
    with pytest.raises(UserError, match=r"Unknown feature map 'decoder'.*Known: encoder, stage1"):
        Analytic(maps=("decoder",)).adapt_network(model)


def test_the_stages_of_a_transformer_are_its_blocks():
    model = build(TINY_TRANSFORMER, [3], 0).eval()
    network, images = model.encoder.model, torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        tokens = network.norm_pre(network._pos_embed(network.patch_embed(images)))
        for number, block in enumerate(network.blocks):
            tokens = block(tokens)
            if number in (1, 5):
                stage = model(images).stages[(1, 5).index(number)]
                assert torch.equal(tokens[0, 1:].T.reshape(64, 2, 3), stage[0])
    assert not any("head" in name for name in model.weights())


def official(model):
    """The names of DINOv2's own files: positions have one for the class token, here already added to it."""
    named = {k: t.half() for k, t in model.state_dict().items() if k not in ("cls_token", "reg_token", "pos_embed")}
    first = torch.ones(1, 1, 64)
    return named | {
        "cls_token": model.cls_token.data - first,
        "register_tokens": model.reg_token.data.clone(),
        "pos_embed": torch.cat([first, model.pos_embed.data], 1),
        "mask_token": torch.zeros(1, 64),
    }


def test_weights_of_a_transformer_under_their_official_names(tmp_path):
    source, loaded = (Transformer("test_vit", False, depth=2, **REGISTERS).eval() for _ in range(2))
    source.half().float()
    save_file(official(source.model), tmp_path / "official.safetensors")
    load_encoder(loaded, tmp_path / "official.safetensors")
    image = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        for a, b in zip(source(image), loaded(image), strict=True):
            torch.testing.assert_close(a, b)
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    named = source.state_dict() | {"model.head.weight": torch.zeros(5, 64)}  # the library's own names, and a classifier
    save_file({name.removeprefix("model."): t for name, t in named.items()}, tmp_path / "timm.safetensors")
    load_encoder(loaded, tmp_path / "timm.safetensors")
    assert all(torch.equal(t, loaded.state_dict()[name]) for name, t in source.state_dict().items())


def test_weights_of_another_network_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    plain = Transformer("test_vit", False, depth=2)
    save_file(official(Transformer("test_vit", False, depth=2, **REGISTERS).model), path)
    with pytest.raises(UserError, match="does not fit this encoder"):
        load_encoder(plain, path)
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(
        UserError, match=r"78 tensors missing .*, 1 tensors that it does not have \(model.conv1.weight\)"
    ):
        load_encoder(plain, path)
    save_file({**plain.model.state_dict(), "reg_token": torch.zeros(1, 1, 64)}, path)
    with pytest.raises(UserError, match="1 tensors that it does not have"):
        load_encoder(plain, path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"encoder_output_indices": (1, 6)}, r"cannot be built .*range \[-6, 6\)"),
        ({"encoder_output_stride": 16}, "cannot be built .*Dilated mode not supported"),
    ],
)
def test_options_that_a_transformer_does_not_have(options, says):
    with pytest.raises(UserError, match=says):
        build(ModelSpec("none", "tu-test_vit", "none", options), [2], 0)
    with pytest.raises(UserError, match=r"'decoder_channels'.*Known: encoder_depth"):
        check_spec(ModelSpec("none", "tu-test_vit", "none", {"decoder_channels": 3}))
