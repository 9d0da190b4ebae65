"""Turns a step's plan into tensors, runs the model, samples; the one part of the engine that knows torch."""
