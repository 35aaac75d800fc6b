"""Adding classes to a model that is there, and taking contributions out again, without training anything."""
