"""Importing a submodule without paying for its package's ``__init__``.

Some packages import their servers and SDK clients in ``__init__`` (seconds of CPU) although
mtrl needs one light submodule. `light_packages` puts a stand-in for such a package into
``sys.modules``: submodules are found as usual, and the first use of any other name runs the
real ``__init__`` in the same module object, so code that wants the whole package gets it.
"""

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_lock = threading.RLock()


class _LightPackage(ModuleType):
    """A package whose ``__init__`` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _lock:
            if isinstance(self, _LightPackage):
                # From here on the module behaves as any other, also towards its own imports.
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                try:
                    spec.loader.exec_module(self)
                except BaseException:
                    self.__class__ = _LightPackage
                    raise
        return getattr(self, name)


def light_packages(*names: str) -> None:
    """Stand in for the packages ``names``, parents first; does nothing for a loaded one."""
    for name in names:
        with _lock:
            if name in sys.modules:
                continue
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None or not spec.submodule_search_locations:
                continue  # not installed, or no package: the import itself will say so
            module = importlib.util.module_from_spec(spec)
            module.__class__ = _LightPackage
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
