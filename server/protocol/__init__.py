"""What clients send, as pydantic models. Ranges of sampling parameters live in `engine.sampling_params`."""
