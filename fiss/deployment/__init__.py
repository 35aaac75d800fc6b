"""A real federation: server, sites, start-up kits, the series of jobs."""
