"""A whole federation on one machine: its world, its engines, its experiment."""
