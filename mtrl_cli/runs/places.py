"""Where mtrl keeps what outlives a run."""

import os
from pathlib import Path


def default_store() -> Path:
    """The user's folder of weights: ``$MTRL_HOME/store``, or below the XDG data folder."""
    home = os.environ.get("MTRL_HOME")
    if home:
        return Path(home).expanduser() / "store"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "mtrl" / "store"
