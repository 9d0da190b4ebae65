"""Attention over a paged KV cache behind one `interface`: in torch for CPUs, in Triton, and by flash-attn."""
