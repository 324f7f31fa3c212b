"""Policies by name: which one is meant, and giving one a name that stays."""
