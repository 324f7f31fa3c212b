"""How the shipped model was made: its tokenizer, and weights that play a coin flip.

A build step, not part of the server: ``python -m mtrl_cli.local.warmstart --out DIR``.
"""
