"""What every benchmark says of the machine it ran on, and the one form of its JSON."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def machine() -> dict[str, object]:
    """Processor, cores, Python, the date, and the load that the figures were taken under."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "load": load(),
    }


def load() -> float | None:
    """The load average of the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def write(path: Path | None, benchmark: str, rows: Sequence[Any]) -> None:
    """Write ``rows`` with the machine's facts to ``path``; to nothing where it is None."""
    if path is not None:
        command = " ".join(["python -m", f"benchmarks.{benchmark}", *sys.argv[1:]])
        facts = {"benchmark": benchmark, "command": command, "machine": machine(), "rows": rows}
        path.write_text(json.dumps(facts, indent=2) + "\n")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
