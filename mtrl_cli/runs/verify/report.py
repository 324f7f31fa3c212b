"""What a verification says: what was checked, what could not be, what is wrong and where."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``file`` is a path below the run's folder; lines count from 1."""

    file: str
    line: int | None
    what: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.what}"


@dataclass(slots=True)
class Report:
    """Filled while the files are read."""

    checked: Counter[str] = field(default_factory=Counter)
    """What was looked at, and how much of it."""
    notes: list[str] = field(default_factory=list)
    """What was not checked, and why."""
    findings: list[Finding] = field(default_factory=list)

    def found(self, file: str, line: int | None, what: str) -> None:
        self.findings.append(Finding(file, line, what))
