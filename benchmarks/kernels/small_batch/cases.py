"""The models, batch sizes and contexts that are measured, and the tiles that compete for them."""

from __future__ import annotations

from kernels.triton.small_batch.tiles import AttentionTile, LinearTile
from model.config import ModelConfig

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 1536, 4096)  # of the graphs that engine/runner/graph_runner.py captures
BLOCK_SIZE = 128
KINDS = ("qkv", "o", "gate_up", "down", "lm_head")

BANDWIDTH = 4.6e12  # bytes a second that the card reads at best
# Milliseconds a step at context 512, from laboratory kernels on this card: what these have to reach.
TARGETS_MS = {"0.6B": {1: 0.642, 4: 0.851, 16: 1.100}, "8B": {1: 3.99, 4: 4.41, 16: 4.80}}


def _qwen3(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    tied: bool,
    kv_heads: int = 8,
    vocab: int = 151936,
) -> ModelConfig:
    return ModelConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=tied,
        qk_norm=True,
    )


MODELS = {
    "0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "8B": _qwen3(4096, 12288, 36, 32, tied=False),
    # A rank's part of two.
    "8B-2": _qwen3(4096, 6144, 36, 16, tied=False, kv_heads=4, vocab=75968),
    "32B-2": _qwen3(5120, 12800, 64, 32, tied=False, kv_heads=4, vocab=75968),
}
RANKS = {"8B-2": 2, "32B-2": 2}


def product_shape(config: ModelConfig, kind: str) -> tuple[int, int]:
    """(outputs, inner dimension); of gate_up, the outputs after the activation."""
    q_size = config.num_heads * config.head_dim
    return {
        "qkv": (q_size + 2 * config.num_kv_heads * config.head_dim, config.hidden_size),
        "o": (config.hidden_size, q_size),
        "gate_up": (config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "lm_head": (config.vocab_size, config.hidden_size),
    }[kind]


def _gemv(*tiles: tuple[int, int, int, str]) -> list[LinearTile]:
    return [LinearTile("gemv", n, k, warps, trigger) for n, k, warps, trigger in tiles]  # type: ignore[arg-type]


def _skinny(*tiles: tuple[int, int, int], splits: tuple[int, ...] = (1,)) -> list[LinearTile]:
    return [
        LinearTile("skinny", n, k, 4, "late", num_stages=stages, splits=s)
        for n, k, stages in tiles
        for s in splits
    ]


GEMV = {
    "0.6B": {
        "qkv": _gemv(
            (16, 1024, 8, "early"), (8, 1024, 8, "early"), (4, 1024, 4, "late"), (8, 1024, 4, "early")
        ),
        "o": _gemv((4, 2048, 8, "early"), (4, 2048, 8, "late"), (8, 2048, 8, "early")),
        "gate_up": _gemv(
            (16, 1024, 8, "early"), (8, 1024, 8, "early"), (8, 1024, 8, "late"), (4, 1024, 4, "late")
        ),
        "down": _gemv(
            (4, 1024, 8, "early"), (4, 1024, 8, "late"), (8, 1024, 8, "early"), (4, 1024, 4, "early")
        ),
        "lm_head": _gemv((8, 1024, 4, "early"), (8, 1024, 8, "late"), (16, 1024, 8, "late")),
    },
    "8B": {
        "qkv": _gemv((4, 2048, 8, "late"), (4, 4096, 8, "late"), (4, 2048, 8, "early")),
        "o": _gemv((4, 4096, 8, "early"), (4, 2048, 8, "late"), (8, 2048, 8, "early")),
        "gate_up": _gemv((4, 2048, 8, "late"), (4, 4096, 8, "late"), (8, 1024, 4, "late")),
        "down": _gemv(
            (4, 2048, 8, "late"), (4, 4096, 8, "late"), (8, 1024, 4, "late"), (4, 2048, 8, "early")
        ),
        "lm_head": _gemv((4, 2048, 8, "late"), (8, 2048, 8, "late"), (8, 1024, 4, "late")),
    },
}
GEMV_TWO_ROWS = {  # twice the accumulators: smaller tiles
    "0.6B": {
        "qkv": _gemv((8, 1024, 8, "early"), (4, 1024, 8, "early")),
        "o": _gemv((4, 2048, 8, "early"), (4, 1024, 8, "early")),
        "gate_up": _gemv((4, 1024, 8, "early"), (4, 1024, 8, "late")),
        "down": _gemv((4, 1024, 8, "early"), (4, 1024, 8, "late")),
        "lm_head": _gemv((8, 1024, 8, "late"), (4, 1024, 4, "late")),
    },
    "8B": {
        "qkv": _gemv((4, 2048, 8, "late"), (4, 1024, 8, "late")),
        "o": _gemv((4, 2048, 8, "early"), (4, 1024, 8, "late")),
        "gate_up": _gemv((4, 1024, 8, "late"), (4, 2048, 8, "late")),
        "down": _gemv((4, 2048, 8, "late")),
        "lm_head": _gemv((4, 2048, 8, "late"), (4, 1024, 8, "late")),
    },
}
SKINNY = {
    "0.6B": {
        "qkv": _skinny((64, 128, 4), (64, 64, 6), (64, 128, 3)),
        "o": _skinny((64, 128, 3), (64, 64, 4), splits=(8, 4)),
        "gate_up": _skinny((64, 64, 6), (64, 128, 4), (64, 128, 3)),
        "down": _skinny((64, 128, 3), (64, 64, 4), splits=(8, 4)),
        "lm_head": _skinny((128, 64, 5), (64, 128, 4), (64, 64, 6)),
    },
    "8B": {
        "qkv": _skinny((64, 128, 4), (64, 64, 6), (128, 64, 5)),
        "o": _skinny((64, 128, 4), splits=(4, 2)),
        "gate_up": _skinny((128, 64, 4), (64, 128, 4), (64, 64, 6)),
        "down": _skinny((64, 128, 4), (64, 64, 6), splits=(4, 2)),
        "lm_head": _skinny((64, 128, 4), (128, 64, 5), (64, 64, 6)),
    },
}


for _model in RANKS:
    GEMV[_model] = dict.fromkeys(
        KINDS,
        _gemv(
            (4, 2048, 8, "early"),
            (4, 2048, 8, "late"),
            (4, 1024, 8, "early"),
            (8, 1024, 8, "early"),
            (8, 1024, 4, "late"),
        ),
    )
    GEMV_TWO_ROWS[_model] = dict.fromkeys(KINDS, _gemv((4, 2048, 8, "early"), (4, 1024, 8, "late")))
    SKINNY[_model] = SKINNY["8B"]

WIDE_SKINNY = {  # for more than 16 rows, whose x takes room beside the weights
    "qkv": _skinny((64, 128, 4), (64, 128, 3), (64, 64, 6), (128, 64, 5), (128, 64, 4)),
    "o": _skinny((64, 128, 4), (64, 128, 3), (64, 64, 6), splits=(2, 4)),
    "gate_up": _skinny((64, 128, 3), (64, 64, 6), (64, 64, 4), (128, 64, 3), (128, 64, 4)),
    "down": _skinny((64, 128, 4), (64, 128, 3), (64, 64, 6), splits=(2, 4, 6)),
    "lm_head": _skinny((64, 128, 4), (128, 64, 4), (64, 64, 6)),
}


# Of these tiles there are 128 or 384 (192 in qkv), which load the card's 132 multiprocessors alike.
NARROW_SKINNY = {
    "8B": {
        "qkv": _skinny((32, 128, 6)),
        "o": _skinny((32, 256, 4), (32, 256, 6)),
        "gate_up": _skinny((32, 128, 4), (32, 128, 5)),
        "down": _skinny((32, 256, 6), (32, 256, 4), (32, 128, 8)),
        "lm_head": _skinny((32, 256, 4)),
    }
}
MOST_NARROW_ROWS = 8  # beyond, tiles of 64 weight rows lose nothing by padding x to 16
# For the outputs of which a rank has a part, so that there are as many programs as on one card.
HALF_SKINNY = _skinny((32, 128, 4), (32, 128, 6), (32, 64, 6))


def linear_candidates(model: str, kind: str, num_rows: int) -> list[LinearTile]:
    """Tiles worth measuring for one of a model's products."""
    halves = HALF_SKINNY if model in RANKS and kind in ("qkv", "gate_up") else []
    if num_rows > 16:
        k = product_shape(MODELS[model], kind)[1]
        return [*(tile for tile in WIDE_SKINNY[kind] if k % (tile.splits * tile.block_k) == 0), *halves]
    if num_rows == 1:
        down = SKINNY[model]["down"][:1] if kind == "down" else []
        return [*GEMV[model][kind], *down]
    narrow = NARROW_SKINNY.get(model, {}).get(kind, []) if num_rows <= MOST_NARROW_ROWS else []
    return [*(GEMV_TWO_ROWS[model][kind] if num_rows == 2 else []), *SKINNY[model][kind], *narrow, *halves]


def _dot(splits: int, keys: int, stages: int = 3, **fields: str) -> AttentionTile:
    return AttentionTile("dot", keys, splits, num_stages=stages, **fields)  # type: ignore[arg-type]


def attention_candidates(num_rows: int, max_context: int) -> list[AttentionTile]:
    """Tiles worth measuring for one layer's attention."""
    if num_rows > 16:
        splits = (1, 2, 3) if max_context <= 1536 else (2, 4, 8)
        return [
            _dot(s, 64, stages, trigger=t)
            for s in splits
            for stages, t in ((3, "late"), (5, "late"), (3, "early"))
        ]
    if max_context > 512:
        splits = {1: (8, 16, 24), 2: (8, 12, 16), 4: (4, 6, 8, 12)}
        tiles = [
            _dot(count, keys, stages)
            for count in splits.get(num_rows, (2, 4, 6, 8))
            for keys, stages in ((64, 3), (128, 2))
        ]
        return [*tiles, _dot(4, 64, trigger="late"), _dot(4, 64, 5)]
    if num_rows == 1:
        return [
            AttentionTile("single_tile", 64, 8, combine="projection"),
            AttentionTile("single_tile", 32, 16, combine="projection"),
            AttentionTile("single_tile", 64, 8),
            _dot(4, 128, 2, combine="projection"),
            _dot(4, 128, 2),
            _dot(8, 64),
        ]
    return [_dot(4, 128, 2), _dot(8, 64), _dot(4, 64), _dot(2, 64), _dot(2, 64, trigger="late"), _dot(1, 64)]
