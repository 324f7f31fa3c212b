"""Evaluations: games on held-out seeds, their statistics, two policies on the same games."""
