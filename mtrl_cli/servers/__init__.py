"""Clients of training services: one interface, one transport, one error classifier."""
