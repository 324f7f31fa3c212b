"""The commands that carry out a run: from arguments to an experiment, its screen, its signals."""
