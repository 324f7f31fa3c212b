"""Message schemas that a client and a server of the same protocol share; nothing else of mtrl."""
