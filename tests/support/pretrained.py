"""Tiny networks that segmentation_models_pytorch saves by its own save_pretrained."""

import segmentation_models_pytorch as smp
import torch

TINY = {
    "unet": {"encoder_depth": 3, "decoder_channels": (16, 8, 4)},
    "fpn": {"decoder_pyramid_channels": 16, "decoder_segmentation_channels": 32},
    "deeplabv3plus": {"encoder_depth": 3, "decoder_channels": 16, "decoder_atrous_rates": (1, 2, 3)},
    "pspnet": {"psp_out_channels": 16},
}


def saved(folder, architecture="fpn", classes=4, **options):
    """A tiny network with statistics and a head that are not at their beginning, and its folder."""
    torch.manual_seed(0)
    network = smp.create_model(architecture, "resnet18", None, classes=classes, **{**TINY[architecture], **options})
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.3, 0.3)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    torch.nn.init.uniform_(network.segmentation_head[0].bias)
    network.save_pretrained(folder)
    return network.eval()
