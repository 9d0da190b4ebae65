"""Readers: every row is emitted or dropped under a name, whatever the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.traces import TraceError, blocks, mooncake, read_trace
from tests.support.examples import examples

SAMPLES = Path(__file__).parents[2] / "loadgen" / "traces" / "samples"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def row(timestamp: object = 0, inputs: object = 600, outputs: object = 5, **more: object) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": inputs, "output_length": outputs, **more})


def test_azure_sample_is_read_whole() -> None:
    trace = read_trace(SAMPLES / "azure_conv_120s.csv")
    assert (trace.format, len(trace.rows), trace.rows_read, trace.block_size) == ("azure", 456, 456, None)
    assert trace.rows[0].arrival_ns == 0
    # 18:15:46.6805900 and 18:15:50.9951690 are the first two stamps: the seventh decimal counts.
    assert trace.rows[1].arrival_ns == 4_314_579_000
    assert (trace.rows[1].input_tokens, trace.rows[1].output_tokens) == (396, 109)


def test_mooncake_sample_is_read_whole() -> None:
    trace = read_trace(SAMPLES / "mooncake_conversation_300s_short.jsonl")
    assert (trace.format, len(trace.rows), trace.rows_read, trace.block_size) == ("mooncake", 413, 413, 512)
    assert not trace.dropped
    assert all(before.arrival_ns <= after.arrival_ns for before, after in zip(trace.rows, trace.rows[1:]))  # noqa: B905


def test_mooncake_drops_rows_by_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        row(2000, hash_ids=[1, 2]),
        row(1000, hash_ids=[1, 3]),
        "{nonsense",
        "[1, 2]",
        row(hash_ids=[1]),  # 600 tokens are two blocks
        row("soon", hash_ids=[1, 2]),
        row(-1, hash_ids=[1, 2]),
        row(1e308, hash_ids=[1, 2]),
        row(outputs=10**12, hash_ids=[1, 2]),
        row(outputs=0, hash_ids=[1, 2]),
        row(inputs=1.5, hash_ids=[1, 2]),
        row(inputs=True, hash_ids=[1, 2]),
        row(hash_ids=["a", 2]),
        row(session_id="s", hash_ids=[1, 2]),
        json.dumps({"timestamp": 1, "input_length": 5}),
        "",
    )
    trace = read_trace(path)
    assert [r.arrival_ns for r in trace.rows] == [1_000_000_000, 2_000_000_000]
    assert trace.dropped == {
        "not_json": 1,
        "not_an_object": 1,
        "hash_ids_mismatch": 1,
        "bad_timestamp": 3,
        "zero_output_length": 1,
        "bad_output_length": 1,
        "bad_input_length": 2,
        "bad_hash_ids": 1,
        "session_turn": 1,
        "missing_output_length": 1,
    }
    assert trace.rows_read == 15 == len(trace.rows) + sum(trace.dropped.values())


@pytest.mark.parametrize("block_size", blocks.SIZES)
def test_mooncake_block_size_comes_from_the_rows(tmp_path: Path, block_size: int) -> None:
    lengths = [block_size, block_size + 1, 7 * block_size, 1]
    rows = [row(inputs=n, hash_ids=list(range(-(-n // block_size)))) for n in lengths]
    assert read_trace(write(tmp_path / "t.jsonl", *rows)).block_size == block_size


def test_azure_columns_are_found_by_name_and_bad_rows_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "GeneratedTokens,NumImages,TIMESTAMP,ContextTokens",
        "7,0,2024-05-10 00:00:01.500000+00:00,70",
        "8,0,2024-05-10 02:00:01.25+02:00,80",
        "9,0,2024-05-10 00:00:03,90",
        "9,0,2024-13-10 00:00:03,90",
        "9,0,yesterday,90",
        "0,0,2024-05-10 00:00:03,90",
        "9,0,2024-05-10 00:00:03,-4",
        "9,0",
    )
    trace = read_trace(path)
    assert [(r.arrival_ns, r.input_tokens, r.output_tokens) for r in trace.rows] == [
        (0, 80, 8),
        (250_000_000, 70, 7),
        (1_750_000_000, 90, 9),
    ]
    assert trace.dropped == {
        "bad_timestamp": 2,
        "zero_GeneratedTokens": 1,
        "bad_ContextTokens": 1,
        "missing_column": 1,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "unknown trace format"),
        ("a,b,c\n1,2,3\n", "unknown trace format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no usable row"),
        (row(outputs=0), "zero_output_length: 1"),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "some-trace"
    path.write_text(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert "some-trace" in str(caught.value)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        read_trace(tmp_path / "nowhere")


@examples(50)
@given(
    lines=st.lists(
        st.one_of(
            st.text(max_size=20),
            st.recursive(
                st.none() | st.integers() | st.text(max_size=3),
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
                ),
            ).map(json.dumps),
            st.fixed_dictionaries(
                {
                    "timestamp": st.one_of(st.integers(-1, 99), st.floats(), st.none()),
                    "input_length": st.one_of(st.integers(-1, 2000), st.text(max_size=2)),
                    "output_length": st.integers(-1, 9),
                    "hash_ids": st.one_of(st.none(), st.lists(st.integers(-1, 9), max_size=4)),
                }
            ).map(json.dumps),
        ),
        max_size=12,
    )
)
def test_every_row_is_accounted_for(lines: list[str]) -> None:
    lines = [line for text in [row(), *lines] for line in text.splitlines()]
    trace = mooncake.read(lines, "t")
    present = sum(bool(line.strip()) for line in lines)
    assert present == trace.rows_read == len(trace.rows) + sum(trace.dropped.values())


BURST_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_burstgpt_drops_requests_that_failed(tmp_path: Path) -> None:
    rows = ["5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,10,0,10,API log", "50.5,GPT-4,7,3,10,API log"]
    trace = read_trace(write(tmp_path / "b.csv", BURST_HEADER, *rows))
    assert (trace.format, trace.rows_read, dict(trace.dropped)) == (
        "burstgpt",
        3,
        {"failed_when_recorded": 1},
    )
    assert [(r.arrival_ns, r.input_tokens, r.output_tokens) for r in trace.rows] == [
        (5 * 10**9, 472, 18),
        (50_500_000_000, 7, 3),
    ]
    assert [row.request_class for row in trace.rows] == ["conversation", "api"]


def test_burstgpt_columns_are_found_by_name(tmp_path: Path) -> None:
    """The third file has two columns more, in the middle."""
    header = BURST_HEADER.replace("Model", "Session ID,Elapsed time,Model")
    trace = read_trace(write(tmp_path / "b.csv", header, "5,s1,0.5,ChatGPT,472,18,490,Conversation log"))
    assert (trace.rows[0].input_tokens, trace.rows[0].output_tokens) == (472, 18)


def test_bailian_counts_in_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    base = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}
    rows = [
        base | {"timestamp": 61.114, "input_length": 40, "output_length": 9, "hash_ids": [1, 2, 3]},
        base | {"timestamp": 62, "input_length": 40, "output_length": 9, "hash_ids": [1]},
    ]
    trace = read_trace(write(tmp_path / "q.jsonl", *map(json.dumps, rows)))
    assert (trace.format, trace.block_size, dict(trace.dropped)) == ("bailian", 16, {"hash_ids_mismatch": 1})
    assert (trace.rows[0].arrival_ns, trace.rows[0].request_class) == (61_114_000_000, "text")


def servegen_client(folder: Path, name: str, rate: float, pattern: str = "Gamma", shape: float = 1.0) -> Path:
    """Ten idle minutes, then ten at a rate."""
    lengths = {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}", "reason_ratio": "{}"}
    empty = dict.fromkeys(lengths, "{}")
    (folder / f"{name}-dataset.json").write_text(json.dumps({"0": lengths, "21600": empty}))
    return write(folder / f"{name}-trace.csv", "0,0,0,,0,0", f"600,{rate},1,{pattern},{shape},0.1")


def test_servegen_draws_a_window_of_a_client(tmp_path: Path) -> None:
    path = servegen_client(tmp_path, "a", 2.0)
    trace = read_trace(path, start_s=600, duration_s=300, seed=1)
    assert trace.format == "servegen" and 500 < len(trace.rows) < 700
    assert {row.input_tokens for row in trace.rows} == {100, 300}
    assert {row.output_tokens for row in trace.rows} == {7}
    assert all(600e9 <= row.arrival_ns < 900e9 for row in trace.rows)
    assert trace == read_trace(path, start_s=600, duration_s=300, seed=1)
    assert trace.rows != read_trace(path, start_s=600, duration_s=300, seed=2).rows


def test_a_servegen_folder_is_a_mix_of_its_clients(tmp_path: Path) -> None:
    servegen_client(tmp_path, "a", 1.0)
    alone = read_trace(tmp_path, start_s=600)
    servegen_client(tmp_path, "b", 2.0, "Weibull", 0.4)
    mix = read_trace(tmp_path, start_s=600)
    assert [row for row in mix.rows if row.request_class == "a"] == alone.rows
    assert sum(row.request_class == "b" for row in mix.rows) == pytest.approx(1200, abs=1)


def test_idle_servegen_clients_say_when_they_begin(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="after 600 s"):
        read_trace(servegen_client(tmp_path, "a", 2.0), duration_s=60)


def test_quantised_stamps_are_noted(tmp_path: Path) -> None:
    lines = [row(3000 * (i // 5), hash_ids=[1, 2]) for i in range(30)]
    (note,) = read_trace(write(tmp_path / "t.jsonl", *lines)).notes
    assert "3 s" in note and "--dejitter" in note
