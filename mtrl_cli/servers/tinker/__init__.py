"""The Tinker HTTP API: hosted Tinker, SkyRL tx, the embedded server."""
