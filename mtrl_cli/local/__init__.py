"""The embedded policy server: a small transformer trained and sampled behind the Tinker API."""
