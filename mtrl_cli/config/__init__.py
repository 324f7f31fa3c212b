"""From YAML and overrides to one frozen Experiment."""
