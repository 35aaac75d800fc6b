"""Networks: an encoder and decoder of segmentation_models_pytorch under our own growing classifier."""
