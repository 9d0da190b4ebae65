"""Collects what was measured, and prints it as Markdown or JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median

OCTAVO = "Octavo"


@dataclass(frozen=True, slots=True)
class Quantity:
    name: str
    unit: str


@dataclass(slots=True)
class Results:
    machine: dict[str, str]
    values: dict[Quantity, dict[str, list[float]]] = field(default_factory=dict)  # by quantity and system
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, unit: str, value: float, system: str = OCTAVO) -> None:
        """One run's value."""
        self.values.setdefault(Quantity(name, unit), {}).setdefault(system, []).append(value)

    def markdown(self) -> str:
        lines = [f"- {key}: {value}" for key, value in self.machine.items()]
        lines += [f"- {note}" for note in self.notes]
        lines += [
            "",
            "| measured | unit | system | median | all runs | Octavo / system |",
            "| --- | --- | --- | ---: | --- | ---: |",
        ]
        for quantity, systems in self.values.items():
            for system, runs in systems.items():
                cells = (quantity.name, quantity.unit, system, _number(median(runs)))
                ratio = "" if system == OCTAVO or OCTAVO not in systems else _ratio(systems[OCTAVO], runs)
                lines.append(f"| {' | '.join(cells)} | {', '.join(map(_number, runs))} | {ratio} |")
        return "\n".join(lines)

    def to_json(self) -> str:
        rows = [
            {"name": quantity.name, "unit": quantity.unit, "system": system, "runs": runs}
            for quantity, systems in self.values.items()
            for system, runs in systems.items()
        ]
        return json.dumps({"machine": self.machine, "notes": self.notes, "results": rows}, indent=1)


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{median(ours) / median(theirs):.2f}"


def _number(value: float) -> str:
    """Three significant digits, whole numbers in full."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
