"""Where YAML files are, and what stands in them, before anything is composed."""
