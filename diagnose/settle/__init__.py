"""Settling bets: what a metric was, how noisy it is, and whether an experiment came out as predicted.

Works on finished results (`diagnose.contract`) only.
"""
