"""Engines carry orders to clients and replies back."""
