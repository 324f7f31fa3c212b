"""Sinks: a run's figures, sent to the trackers that people already look at."""
