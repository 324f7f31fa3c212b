"""The commands: parse, call, present."""
