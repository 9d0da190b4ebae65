"""Which tools a chat may call, and whether it has to: `tools` and `tool_choice`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from server.errors import invalid, unsupported
from server.protocol.chat import ChatFields

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`mode` "none": no tools, or none to be called; "named": `name` has to be called, and nothing else."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    tools: tuple[Tool, ...] = ()  # what the model is shown; none if it must not call any
    name: str | None = None
    is_parallel: bool = True  # may make several calls

    @property
    def is_forced(self) -> bool:
        return self.mode in ("required", "named")


def read_tool_use(body: ChatFields) -> ToolUse:
    """Raises `APIError`."""
    choice = body.tool_choice
    if body.tools is None:
        if choice not in (None, "none"):
            raise invalid("tool_choice", "tool_choice needs tools")
        return ToolUse()
    if not body.tools:
        raise invalid("tools", "tools must not be empty")
    for i, tool in enumerate(body.tools):
        _check_tool(tool, f"tools[{i}]")
    tools = tuple(body.tools)
    is_parallel = body.parallel_tool_calls is not False
    match choice:
        case "none":
            return ToolUse()
        case None | "auto":
            return ToolUse("auto", tools, is_parallel=is_parallel)
        case "required":
            return ToolUse("required", tools, is_parallel=is_parallel)
        case str():
            raise invalid("tool_choice", "tool_choice must be none, auto, required or a function")
    return ToolUse("named", tools, _chosen_name(choice, tools), is_parallel=False)


def _chosen_name(choice: Any, tools: tuple[Tool, ...]) -> str:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind != "function":
        message = f"tool_choice of type {str(kind)[:40]!r} is not supported: name a function"
        raise unsupported("tool_choice", message)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise invalid("tool_choice", "tool_choice.function.name is required", "missing_required_parameter")
    if all(tool["function"]["name"] != name for tool in tools):
        raise invalid("tool_choice", f"tool_choice names {name[:100]!r}, which is not among the tools")
    return name


def _check_tool(tool: Tool, param: str) -> None:
    kind = tool.get("type")
    if kind != "function":
        message = f"{param}: only tools of type function are supported, not {str(kind)[:40]!r}"
        raise unsupported("tools", message)
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise invalid("tools", f"{param}.function is required", "missing_required_parameter")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid("tools", f"{param}.function.name must be a string that is not empty")
    if not isinstance(function.get("parameters"), Mapping | None):
        raise invalid("tools", f"{param}.function.parameters must be a JSON schema")
