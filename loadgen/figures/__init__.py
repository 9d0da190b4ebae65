"""The figures of a run, from its record alone: whatever a run prints, `octavo report` can compute again."""
