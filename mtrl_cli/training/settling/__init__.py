"""Settling a dead run: what its server and its sandboxes still hold."""
