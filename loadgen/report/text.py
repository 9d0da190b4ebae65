"""The summary of a run as plain text."""

from __future__ import annotations

from typing import Any

from loadgen.figures.percentiles import MIN_SAMPLES_FOR_P99, SHARES

LATENCIES = {
    "ttft_from_due": "TTFT, from due time",
    "ttft_from_sent": "TTFT, from send",
    "first_content_from_due": "first content, from due",
    "first_byte_from_sent": "first byte, from send",
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
        *_failure_lines(summary),
        *_interval_lines(summary["latency_95_ms"]),
        *_class_lines(summary["classes"]),
        *_steady_lines(summary["steady"]),
        "",
        *_goodput_lines(summary["goodput"]),
    ]
    lines += [*_token_lines(summary["tokens"]), *_server_lines(summary["server"])]
    if "simulated" not in summary["run"]:
        lines += _client_lines(summary["client"])
    return "\n".join(lines)


def number(value: float | None, width: int = 0) -> str:
    return ("-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}").rjust(width)


def started(env: dict[str, Any]) -> str:
    return str(env["started_at"] or "in virtual time")


def shown_latencies(latency: dict[str, Any]) -> dict[str, Any]:
    """By key; the first content only where it is not the first token, as with reasoning."""
    same = latency["first_content_from_due"] == latency["ttft_from_due"]
    return {key: latency[key] for key in LATENCIES if not (same and key == "first_content_from_due")}


def _load_lines(summary: dict[str, Any]) -> list[str]:
    load, verdict = summary["load"], summary["verdict"]
    lag = load["lag_ms"]
    error = "" if load["rate_error"] is None else f" ({load['rate_error']:+.2%})"
    lines = [
        "load VALID" if verdict["valid"] else "LOAD_INVALID: the figures below are not of the load asked for"
    ]
    lines += [f"  because {cause}" for cause in verdict["causes"]]
    lines.append(
        f"  rate     intended {number(load['intended_rate_rps'])} req/s, "
        f"offered {number(load['offered_rate_rps'])} req/s{error}, {load['max_in_flight']} in flight at most"
    )
    lines.append(
        "  lag      " + ", ".join(f"{name} {number(lag[name])} ms" for name in ("p50", "p99", "max"))
    )
    lines.append(
        f"  gaps     {number(load['gap_distance'])} off the intended (KS); variance over mean of a second's "
        f"arrivals {number(load['offered_dispersion'])}, intended {number(load['intended_dispersion'])}"
    )
    if summary["run"]["dejitter_ms"] is not None:
        lines.append(f"  dejitter equal stamps spread over {number(summary['run']['dejitter_ms'])} ms")
    return lines


def _request_lines(summary: dict[str, Any]) -> list[str]:
    requests, run = summary["requests"], summary["run"]
    failed = sum(requests["failures"].values())
    line = f"requests  {requests['scheduled']} scheduled, {requests['sent']} sent, "
    line += f"{requests['succeeded']} succeeded, {failed} failed"
    lines = [line + (f", {requests['unsent']} not sent" if requests["unsent"] else "")]
    for kind, count in requests["failures"].items():
        lines.append(f"  {count} x {kind}: {requests['failure_examples'][kind]}")
    if requests["retried_attempts"]:
        lines.append(f"  {requests['retried_attempts']} attempts failed and were tried again")
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
    for key, row in shown_latencies(latency).items():
        few |= row["n"] < MIN_SAMPLES_FOR_P99
        lines.append(_latency_line(LATENCIES[key], row))
    if few:
        lines.append(f"* fewer than {MIN_SAMPLES_FOR_P99} samples: p99 is little more than the largest few")
    return lines


def _failure_lines(summary: dict[str, Any]) -> list[str]:
    """Percentiles in which failed requests wait for ever, where there are some."""
    if not summary["requests"]["failures"]:
        return []
    rows = summary["latency_with_failures_ms"].items()
    return ["with failed requests as endless:"] + [
        f"  {LATENCIES[key]:25}"
        + "".join(("endless" if row[name] is None else number(row[name])).rjust(9) for name in SHARES)
        + f"{row['n']:28d}"
        for key, row in rows
    ]


def _interval_lines(intervals: dict[str, Any]) -> list[str]:
    rows = [
        f"  {LATENCIES[key]:25}"
        + "".join(f"{number(low)} to {number(high)}".rjust(18) for low, high in cells)
        for key, row in intervals.items()
        if all(cells := list(row.values()))
    ]
    return ["95 % intervals".ljust(27) + "".join(name.rjust(18) for name in SHARES), *rows] if rows else []


def _latency_line(title: str, row: dict[str, Any]) -> str:
    cells = "".join(number(row[name], 9) for name in COLUMNS)
    return f"{title:27}{cells}{row['n']:10d}" + ("*" if row["n"] < MIN_SAMPLES_FOR_P99 else "")


def _class_lines(classes: dict[str, Any]) -> list[str]:
    return [
        _latency_line(f"  {name or '(none)'}: {key}", row)
        for name, figures in classes.items()
        for key, row in figures["latency_ms"].items()
    ]


def _steady_lines(steady: dict[str, Any] | None) -> list[str]:
    if steady is None:
        return []
    line = f"steady from {steady['from_s']:.1f} s to {steady['to_s']:.1f} s"
    line += f" ({steady['warmup_requests']} requests cut)"
    if not steady["steady"]:
        line = "NO STEADY STATE: " + (
            f"TTFT grows by {number(steady['ttft_growth_ms_per_s'])} ms each second"
            if steady["ttft_growth_ms_per_s"]
            else "the latency never settles"
        )
    rate = f", {number(steady['output_tokens_per_s'])} tokens/s"
    rows = steady["latency_ms"].items()
    return [line + rate, *(_latency_line(f"  {LATENCIES[key]}", row) for key, row in rows)]


def _goodput_lines(goodput: dict[str, Any] | None) -> list[str]:
    if goodput is None:
        return []
    low, high = goodput["attainment_95"]
    limits = "; ".join(
        f"{name} " + ", ".join(f"{measure} {limit:g} ms" for measure, limit in limits.items())
        for name, limits in goodput["objectives_ms"].items()
    )
    measures = ", ".join(f"{name} {share:.1%}" for name, share in goodput["attainment_by_measure"].items())
    fluidity = (
        "" if goodput["fluidity_index"] is None else f", fluidity index {goodput['fluidity_index']:.3f}"
    )
    return [
        f"goodput   {goodput['attainment']:.1%} of {goodput['judged']} sent meet the objective "
        f"({low:.1%} to {high:.1%})",
        f"  objective {limits}; met alone: {measures}{fluidity}",
        f"  {number(goodput['good_requests_per_s'])} good requests/s, "
        f"{number(goodput['good_tokens_per_s'])} good tokens/s, {goodput['wasted_tokens']} tokens of others",
    ]


def _token_lines(tokens: dict[str, Any]) -> list[str]:
    methods = ", ".join(f"{method} {count}" for method, count in tokens["methods"].items())
    lines = [
        f"tokens    {tokens['input']} in, {tokens['output']} out, {number(tokens['output_per_s'])} out/s; "
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
            "the load shares no prefix, so this should be 0"
            if ideal is None
            else f"an unlimited cache: {ideal:.1%}"
        )
        lines.append(f"  cached   {tokens['cache_hit_rate']:.1%} of prompt tokens ({beside})")
    if tokens["warm_cache"]:
        lines.append(
            "  WARNING  the server's prefix cache knew prompts of this run before it began; "
            "--nonce and --flush-cache prevent it"
        )
    return lines


def _server_lines(server: dict[str, Any] | None) -> list[str]:
    if server is None:
        return []
    parts = [
        f"{name} at most {number(server[f'max_{name}'])}"
        for name in ("running", "waiting")
        if f"max_{name}" in server
    ]
    if server.get("max_kv_usage") is not None:
        parts.append(f"KV use {server['max_kv_usage']:.0%}")
    if server["prefix_hit_rate"] is not None:
        parts.append(f"prefix hits {server['prefix_hit_rate']:.1%}")
    if server.get("preemptions"):
        parts.append(f"{server['preemptions']:.0f} preemptions")
    there, here = server["ttft_mean_ms"], server["client_ttft_mean_ms"]
    if there is not None and here is not None:
        parts.append(f"mean TTFT {number(there)} ms there, {number(here)} ms here")
    return [f"server    {', '.join(parts)}"]


def _client_lines(client: dict[str, Any]) -> list[str]:
    if client["cpu_us_per_request"] is None:
        return ["client    the run was killed before its end"]
    line = f"client    {client['cpu_us_per_request']:.0f} us CPU per request, {client['cpu_cores']:.2f} cores"
    return [line + (", interrupted" if client["interrupted"] else "")]
