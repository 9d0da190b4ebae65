"""The summary of a run as plain text."""

from __future__ import annotations

from typing import Any

from loadgen.summary import MIN_SAMPLES_FOR_P99

LATENCIES = {
    "ttft_from_due": "TTFT, from due time",
    "ttft_from_sent": "TTFT, from send",
    "inter_token": "inter-token latency",
    "inter_chunk": "inter-chunk gap",
    "tpot": "time per output token",
    "e2e_from_due": "end to end, from due time",
    "e2e_from_sent": "end to end, from send",
}
COLUMNS = ("p50", "p90", "p99", "max", "mean")


def render_text(summary: dict[str, Any]) -> str:
    """The verdict on the load comes first: without it, no latency means anything."""
    lines = [
        *_load_lines(summary),
        "",
        *_request_lines(summary),
        "",
        *_latency_lines(summary["latency_ms"]),
        "",
    ]
    return "\n".join([*lines, *_token_lines(summary["tokens"]), *_client_lines(summary["client"])])


def _number(value: float | None, width: int = 0) -> str:
    return ("-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}").rjust(width)


def _load_lines(summary: dict[str, Any]) -> list[str]:
    load, verdict = summary["load"], summary["verdict"]
    lag = load["lag_ms"]
    error = "" if load["rate_error"] is None else f" ({load['rate_error']:+.2%})"
    lines = [
        "load VALID" if verdict["valid"] else "LOAD_INVALID: the figures below are not of the load asked for"
    ]
    lines += [f"  because {cause}" for cause in verdict["causes"]]
    lines.append(
        f"  rate     intended {_number(load['intended_rate_rps'])} req/s, "
        f"offered {_number(load['offered_rate_rps'])} req/s{error}, {load['max_in_flight']} in flight at most"
    )
    lines.append(
        "  lag      " + ", ".join(f"{name} {_number(lag[name])} ms" for name in ("p50", "p99", "max"))
    )
    return lines


def _request_lines(summary: dict[str, Any]) -> list[str]:
    requests, run = summary["requests"], summary["run"]
    failed = sum(requests["failures"].values())
    line = f"requests  {requests['scheduled']} scheduled, {requests['sent']} sent, "
    line += f"{requests['succeeded']} succeeded, {failed} failed"
    lines = [line + (f", {requests['unsent']} not sent" if requests["unsent"] else "")]
    for kind, count in requests["failures"].items():
        lines.append(f"  {count} x {kind}: {requests['failure_examples'][kind]}")
    finished = ", ".join(f"{reason} {count}" for reason, count in requests["finish_reasons"].items())
    lines.append(f"  finish   {finished or 'none'}")
    for name in ("dropped", "clipped"):
        if run[name]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in run[name].items())
            lines.append(f"  {name}  {reasons}")
    return lines


def _latency_lines(latency: dict[str, Any]) -> list[str]:
    lines = ["latency, ms".ljust(27) + "".join(name.rjust(9) for name in COLUMNS) + "n".rjust(10)]
    few = False
    for key, title in LATENCIES.items():
        row = latency[key]
        cells = "".join(_number(row[name], 9) for name in COLUMNS)
        mark = "*" if row["n"] < MIN_SAMPLES_FOR_P99 else ""
        few |= bool(mark)
        lines.append(f"{title:27}{cells}{row['n']:10d}{mark}")
    if few:
        lines.append(f"* fewer than {MIN_SAMPLES_FOR_P99} samples: p99 is little more than the largest few")
    return lines


def _token_lines(tokens: dict[str, Any]) -> list[str]:
    methods = ", ".join(f"{method} {count}" for method, count in tokens["methods"].items())
    lines = [
        f"tokens    {tokens['input']} in, {tokens['output']} out, {_number(tokens['output_per_s'])} out/s; "
        f"counted by {methods or 'nothing'}"
    ]
    wrong = {
        "outputs shorter than asked": tokens["short_outputs"],
        "outputs longer than asked": tokens["long_outputs"],
        "prompt lengths that the server counts differently": tokens["prompt_length_errors"],
    }
    lines += [f"  {count} {what}" for what, count in wrong.items() if count]
    if tokens["cache_hit_rate"] is not None:
        ideal = tokens["ideal_cache_hit_rate"]
        beside = (
            "the trace shares no prefix, so this should be 0"
            if ideal is None
            else f"an unlimited cache: {ideal:.1%}"
        )
        lines.append(f"  cached   {tokens['cache_hit_rate']:.1%} of prompt tokens ({beside})")
    return lines


def _client_lines(client: dict[str, Any]) -> list[str]:
    if client["cpu_us_per_request"] is None:
        return ["client    the run was killed before its end"]
    line = f"client    {client['cpu_us_per_request']:.0f} us CPU per request, {client['cpu_cores']:.2f} cores"
    return [line + (", interrupted" if client["interrupted"] else "")]
