"""Twinkle's own routes."""
