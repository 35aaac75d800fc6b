"""One client's SGD, and evaluation."""
