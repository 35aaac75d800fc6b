"""NVIDIA FLARE: the only imports of it."""
