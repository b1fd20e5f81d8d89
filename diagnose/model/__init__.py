"""Model stage: links, steps, costs of the run, bounds, and the attribution of every nanosecond."""
