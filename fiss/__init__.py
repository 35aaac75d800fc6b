"""Federated incremental semantic segmentation."""

__version__ = "0.1.0"
