"""What `octavo calibrate` learns of one server and `octavo simulate` needs: a small JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from engine.config import SchedulerConfig
from loadgen.simulator.padding import Padding
from loadgen.simulator.step_model import StepModel
from loadgen.simulator.step_shape import StepShape

SCHEMA = "octavo.simulator.profile/4"


class ProfileError(ValueError):
    """The file is no profile, or not one of this version. The message names it."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds: a constant, and more for each of something."""

    constant: float = 0.0
    slope: float = 0.0

    def of(self, count: int) -> float:
        return self.constant + self.slope * count

    def ns(self, count: int) -> int:
        return int((self.constant + self.slope * count) * 1e9)


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """What the host takes to launch one kind of step, without the step itself where launching computes it."""

    seconds: Line = field(default_factory=Line)  # by sequences
    lead_s: float = 0.0  # of them, those before the device has what it computes for long


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the engine thread takes around a step."""

    schedule: Line = field(default_factory=Line)  # by sequences
    launch_decodes: LaunchCost = field(default_factory=LaunchCost)
    launch_chunks: LaunchCost = field(default_factory=LaunchCost)  # beside decodes or alone
    launch_eager: LaunchCost | None = None  # with chunks, too large for a graph; None: as other chunks
    commit: Line = field(default_factory=Line)  # by tokens
    pause_s: float = 0.0  # between two turns of the loop

    def launch(self, shape: StepShape, padding: Padding) -> LaunchCost:
        """Of such a step."""
        if not shape.num_chunks:
            return self.launch_decodes
        if self.launch_eager is not None and padding.is_eager(shape):
            return self.launch_eager
        return self.launch_chunks

    def with_leads(self, decodes_s: float, chunks_s: float) -> HostCosts:
        return replace(
            self,
            launch_decodes=replace(self.launch_decodes, lead_s=decodes_s),
            launch_chunks=replace(self.launch_chunks, lead_s=chunks_s),
            launch_eager=self.launch_eager and replace(self.launch_eager, lead_s=chunks_s),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostCosts:
        return cls(
            schedule=Line(**value["schedule"]),
            launch_decodes=_launch_cost(value["launch_decodes"]),
            launch_chunks=_launch_cost(value["launch_chunks"]),
            launch_eager=_launch_cost(value["launch_eager"]) if value.get("launch_eager") else None,
            commit=Line(**value["commit"]),
            pause_s=value["pause_s"],
        )


def _launch_cost(value: Mapping[str, Any]) -> LaunchCost:
    return LaunchCost(Line(**value["seconds"]), value["lead_s"])


@dataclass(frozen=True, slots=True)
class FrontEndCosts:
    """What a request and its tokens take outside the engine thread."""

    before: Line = field(default_factory=Line)  # from the client's send to the inbox, by prompt tokens
    delivery: Line = field(default_factory=Line)  # from the host to the client, by the step's tokens

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FrontEndCosts:
        return cls(Line(**value["before"]), Line(**value["delivery"]))


@dataclass(frozen=True, slots=True)
class Profile:
    limits: SchedulerConfig
    pipeline_depth: int
    blocking_launch: bool  # launching a step computes it (a CPU); else the host runs ahead of the device
    step: StepModel
    host: HostCosts = field(default_factory=HostCosts)
    front_end: FrontEndCosts = field(default_factory=FrontEndCosts)
    source: dict[str, Any] = field(default_factory=dict)  # model, machine and versions that were measured
    fit: dict[str, Any] = field(default_factory=dict)  # how well the model explains steps it has not seen

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Profile:
        """Raises `ProfileError`."""
        if value.get("schema") != SCHEMA:
            raise ProfileError(f"not a profile of schema {SCHEMA}")
        try:
            return cls(
                limits=SchedulerConfig(**value["limits"]),
                pipeline_depth=value["pipeline_depth"],
                blocking_launch=value["blocking_launch"],
                step=StepModel.from_json(value["step"]),
                host=HostCosts.from_json(value["host"]),
                front_end=FrontEndCosts.from_json(value["front_end"]),
                source=value["source"],
                fit=value["fit"],
            )
        except (KeyError, TypeError) as error:
            raise ProfileError(f"the profile lacks something or has too much: {error}") from None


def max_step_rows(limits: SchedulerConfig) -> int:
    """Most token rows of a step."""
    return max(limits.max_num_batched_tokens, limits.max_num_seqs)


def read_profile(path: str | Path) -> Profile:
    """Raises `ProfileError`."""
    try:
        value = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ProfileError(f"{path}: not a profile of schema {SCHEMA}")
    try:
        return Profile.from_json(value)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def write_profile(profile: Profile, path: str | Path) -> None:
    Path(path).write_bytes(orjson.dumps(profile.to_json(), option=orjson.OPT_INDENT_2))
