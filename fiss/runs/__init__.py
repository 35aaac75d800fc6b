"""What a run leaves behind: its folder, its records, where its numbers come from."""
