"""Models that are ready to use: images segmented, masks and pictures written."""
