"""Rounds, clients, aggregation: what server and sites say to each other, and the loop."""
