"""Learning by sums: features are added up by class, kept by contribution, and solved for a classifier."""
