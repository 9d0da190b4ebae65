"""Text in, token ids out, and back: tokenizer, detokenizer, stop strings, chat template. Needs no torch."""
