"""Which OpenEnv is installed, and whether two of them share one folder.

``openenv-core`` and its successor ``openenv`` own the same import package. Installing one over
the other replaces files, and pip reports nothing; the last one installed wins.
"""

from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

_NAMES = ("openenv", "openenv-core")


def installed() -> dict[str, str]:
    """The installed distributions that own the import package ``openenv``, with versions."""
    found = {}
    for name in _NAMES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def warning() -> str | None:
    """One line when both are installed: which files are in place, and what to do."""
    found = installed()
    if len(found) < 2:
        return None
    winner = _in_place()
    loser = next((name for name in _NAMES if name != winner), None)
    both = " and ".join(f"{name} {version}" for name, version in found.items())
    if winner is None or loser is None:
        state, remedy = "which of their files are in place is unclear", "openenv"
    else:
        state, remedy = f"the files of {winner} are in place", winner
    return (
        f"{both} are both installed and own the same import package; {state}. Keep one:"
        f" python -m pip uninstall -y openenv openenv-core &&"
        f" python -m pip install --no-deps {remedy}"
    )


def _in_place() -> str | None:
    """The distribution whose recorded files are the ones that an import finds."""
    found = PathFinder.find_spec("openenv")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(next(iter(found.submodule_search_locations))).resolve()
    scores = {}
    for name in _NAMES:
        files = [f for f in metadata.files(name) or [] if f.suffix == ".py" and f.size is not None]
        places = [(Path(str(file.locate())).resolve(), file.size) for file in files]
        matching = sum(
            path.is_relative_to(folder) and path.is_file() and path.stat().st_size == size
            for path, size in places
        )
        scores[name] = matching / len(files) if files else 0.0
    best, other = sorted(scores, key=lambda name: -scores[name])
    return best if scores[best] > scores[other] else None
