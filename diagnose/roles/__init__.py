"""Costs for kernels whose operators are not recorded: role assignment from the model's layers, capture traces,
hardware counters, and the arithmetic of a whole step."""
