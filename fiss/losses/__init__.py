"""Losses: pure functions from tensors to scalars."""
