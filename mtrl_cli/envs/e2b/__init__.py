"""E2B: one sandbox per trajectory, over the official SDK.

``program``   what is uploaded: the worker and the game's own files
``worker``    the uploaded script: the game behind JSON lines
``link``      the other end of those lines
``provider``  the only module that knows the SDK, and what its errors mean
``pace``      how many sandboxes at once, how many a second, and backing off
``lost``      creations whose answer was lost: looked for, and killed
``session``   one sandbox as a `mtrl_cli.envs.interface.Session`
``backend``   the factory, from the first creation to the last sweep
"""
