"""Re-checking a run from its files alone; `check.verify` is the way in."""
