"""Everything that decides a run: the config, ready-made ones, and when two runs are the same."""
